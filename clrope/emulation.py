"""The kernels' arithmetic repeated in NumPy, operation by operation, so that a device can be checked by equality.

`clrope.reference` says what is right; this says which bits the kernels must give: the same phase, quadrant, polynomial,
magnitude, rotation and rounding, each operation rounded on its own in the type in which the kernel computes. NumPy's
elementwise `*`, `+`, `-` are single IEEE operations, as those of the kernels under FP_CONTRACT OFF. What no rule fixes
is left open: the bits of a NaN that arithmetic made.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .angles import angle_table
from .config import RopeConfig
from .errors import ShapeError
from .layout import canonical, dtype_name
from .positions import PositionRows, position_rows
from .reference import ggml_theta, pair_indices

Real = Literal["f32", "f64"]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_REAL: dict[Real, type[np.floating[Any]]] = {"f32": np.float32, "f64": np.float64}
#: The polynomials of `kernels/angles.clh` in turns, highest power first: sine (without its linear term), then cosine.
_SINE: dict[Real, tuple[float, ...]] = {
    "f32": (-75.26483, 81.58885, -41.341633),
    "f64": tuple(
        map(
            float.fromhex,
            (
                "-0x1.6c30eaf468ef9p-1",
                "0x1.e8ee32ed2fd2ap+1",
                "-0x1.e3074a65814bbp+3",
                "0x1.507834851bbafp+5",
                "-0x1.32d2cce62a357p+6",
                "0x1.466bc6775aad2p+6",
                "-0x1.4abbce625be53p+5",
            ),
        )
    ),
}
_COSINE: dict[Real, tuple[float, ...]] = {
    "f32": (59.250042, -85.44387, 64.93933, -19.739208),
    "f64": tuple(
        map(
            float.fromhex,
            (
                "-0x1.b27579ee484c3p+0",
                "0x1.f9cc7f07f4c2dp+2",
                "-0x1.a6d1ecd44ad59p+4",
                "0x1.e1f50683dde5ap+5",
                "-0x1.55d3c7e3c97adp+6",
                "0x1.03c1f081b5ab2p+6",
                "-0x1.3bd3cc9be45dep+4",
            ),
        )
    ),
}
#: 2π as the kernels split it.
_TWO_PI: dict[Real, tuple[float, float]] = {
    "f32": (6.28125, 0.0019352358),
    "f64": (float.fromhex("0x1.921fb54442d18p+2"), float.fromhex("0x1.1a62633145c07p-52")),
}
#: The first 256 bits of 1/(2π) in 32-bit digits behind two digits of zeros and one before them, as in
#: `kernels/cache_init_ggml.cl`; four zeros at the end stand for its bounds check.
_INVERSE_TWO_PI = np.array(
    [0, 0, 0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA, 0xF7AEF158,
     0x6DC91B8E, 0, 0, 0, 0],
    dtype=np.uint64,
)  # fmt: skip


def emulate_cos_sin(
    positions: Any, config: RopeConfig, *, head_dim: int | None = None, real: Real = "f32"
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return (cos, sin) times the magnitude as the cache-init kernels make them: float32 (or float64) [rows, pairs].

    positions: an int, [R] integers, or [3, R] / [4, R] in section modes. head_dim: needed if config has no n_dims.
    real: 'f32', or 'f64' for the tables behind float64 tensors.
    Raises `ShapeError` and `ConfigError` as `clrope.Rope.cos_sin` does.
    """
    config = config if head_dim is None else config.for_head_dim(head_dim)
    return emulate_tables(position_rows(positions, config, batch=None, seq=None), config, real)


def emulate_rope(
    x: Any, positions: Any, config: RopeConfig, forward: bool = True, layout: str = "bsnd"
) -> npt.NDArray[Any]:
    """Rotate x as the kernels do, bit for bit, and return a new C-order array of its shape and dtype.

    x: rank 3 or 4 NumPy array (any strides) of a dtype in `layout.DTYPES`; other arguments, and the errors
    raised, as for `clrope.reference.rope`.
    """
    array = np.asarray(x)
    name = dtype_name(array.dtype)
    config = config.for_head_dim(canonical(array, layout).shape[3])
    batches, tokens = canonical(array, layout).shape[:2]
    where = position_rows(positions, config, batch=batches, seq=tokens)
    cosine, sine = emulate_tables(where, config, "f64" if name == "f64" else "f32")
    # One batch of rows a batch of x: [B, S, 1, pairs].
    rows = np.array([np.arange(part.start, part.stop) for part in where.rows_of_batch(batches)], dtype=np.intp)
    rows = rows.reshape(batches, tokens)
    return emulate_rotation(array, cosine[rows], sine[rows], pair_indices(config), forward, layout)


def emulate_rotation(
    x: npt.NDArray[Any],
    cosine: npt.NDArray[Any],
    sine: npt.NDArray[Any],
    pairs: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
    forward: bool = True,
    layout: str = "bsnd",
) -> npt.NDArray[Any]:
    """Rotate x by given tables as the rotation kernels do; elements in no pair keep their bits.

    cosine, sine: [B, S, pairs] in float32 (float64 for float64 x), B of 1 shared by all batches. pairs: element indices
    (first, second) of each pair of a head. Raises `ShapeError` if the tables' type is not the one x computes in.
    """
    real = _REAL["f64" if dtype_name(x.dtype) == "f64" else "f32"]
    if cosine.dtype != real or sine.dtype != real:
        raise ShapeError(
            f"cosine, sine: got {cosine.dtype} and {sine.dtype}, {x.dtype} is rotated by {np.dtype(real)} tables"
        )
    out = np.array(x, order="C", copy=True)
    target = canonical(out, layout)
    first, second = pairs
    c = cosine[:, :, None, :]
    with np.errstate(all="ignore"):
        s = sine[:, :, None, :] * real(1 if forward else -1)
        a, b = (target[..., index].astype(real) for index in (first, second))
        target[..., first] = (a * c - b * s).astype(x.dtype)
        target[..., second] = (a * s + b * c).astype(x.dtype)
    return out


def cos_sin_of_phase(phase: U64, real: Real = "f32") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return cos and sin of unsigned 64-bit fractions of a turn, as `cos_sin_of_phase` in `kernels/angles.clh`."""
    kind = _REAL[real]
    quadrant = (phase + np.uint64(1 << 61)) >> np.uint64(62)
    rest = (phase - (quadrant << np.uint64(62))).astype(np.uint64).view(np.int64)
    if real == "f64":
        x = _scaled(rest >> 32, kind, -32) + _scaled(rest & 0xFFFFFFFF, kind, -64)
    else:
        x = _scaled(rest >> 40, kind, -24) + _scaled((rest >> 16) & 0xFFFFFF, kind, -48)
    u = x * x
    p = _horner(_SINE[real], u, kind)
    high, low = (kind(part) for part in _TWO_PI[real])
    s = x * high + (x * low + x * u * p)
    c = kind(1) + _horner(_COSINE[real], u, kind) * u
    odd = (quadrant & np.uint64(1)).astype(bool)
    cosine, sine = np.where(odd, s, c), np.where(odd, c, s)
    turned = (quadrant == 1) | (quadrant == 2)
    return np.where(turned, -cosine, cosine), np.where(quadrant >= 2, -sine, sine)


def _scaled(integers: I64, kind: type[np.floating[Any]], exponent: int) -> npt.NDArray[Any]:
    scaled: npt.NDArray[Any] = integers.astype(kind) * kind(2.0**exponent)
    return scaled


def _horner(coefficients: tuple[float, ...], u: npt.NDArray[Any], kind: type[np.floating[Any]]) -> npt.NDArray[Any]:
    value: npt.NDArray[Any] = np.full(u.shape, kind(coefficients[0]))
    for coefficient in coefficients[1:]:
        value = value * u + kind(coefficient)
    return value


def emulate_tables(where: PositionRows, config: RopeConfig, real: Real) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return cos and sin of rows as `emulate_cos_sin`; config has n_dims set."""
    table = angle_table(config)
    kind = _REAL[real]
    if config.angles == "ggml":
        with np.errstate(all="ignore"):
            theta = ggml_theta(where.rows, table)
        phase = _phase_of_radians(theta)
        magnitude: Any = np.where(np.isfinite(theta), kind(table.ggml.magnitude), kind(np.nan))
    else:
        axis = table.axis.astype(np.intp) if where.rows.shape[0] > 1 else np.zeros(table.pairs, dtype=np.intp)
        position = where.rows[axis].T
        phase = position.view(np.uint64) * table.step[None, :]
        if real == "f64" or where.beyond_32_bits:
            phase = phase + _mul_high(position, np.broadcast_to(table.step_low, position.shape)).view(np.uint64)
        magnitude = kind(table.magnitude)
    cosine, sine = cos_sin_of_phase(phase, real)
    return cosine * magnitude, sine * magnitude


def _mul_high(a: I64, b: I64) -> I64:
    """Return the upper 64 bits of signed 64 x 64-bit products (OpenCL's `mul_hi`)."""
    a_low, b_low = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    a_high, b_high = a >> 32, b >> 32
    # The product of the low halves needs all 64 bits unsigned, the others fit signed ones.
    lowest = ((a_low.view(np.uint64) * b_low.view(np.uint64)) >> np.uint64(32)).view(np.int64)
    middle = a_high * b_low + lowest
    other = a_low * b_high + (middle & 0xFFFFFFFF)
    high: I64 = a_high * b_high + (middle >> 32) + (other >> 32)
    return high


def _phase_of_radians(theta: npt.NDArray[np.float32]) -> U64:
    """Return the fraction of a turn of finite float32 angles, as `phase_of_radians` in `kernels/cache_init_ggml.cl`."""
    bits = theta.view(np.uint32).astype(np.uint64)
    exponent = ((bits >> np.uint64(23)) & np.uint64(255)).astype(np.int64) - 150
    mantissa = (bits & np.uint64(0x7FFFFF)) | np.uint64(0x800000)
    nothing = ((bits & np.uint64(0x7FFFFFFF)) < 0x800000) | (exponent < -96)
    place = np.where(nothing, 0, exponent + 96)
    digit, shift = place >> 5, (place & 31).astype(np.uint64)
    w0, w1, w2, w3 = (_INVERSE_TWO_PI[digit + k] for k in range(4))
    bits32, bits64 = np.uint64(32), np.uint64(64)
    high, low = (w0 << bits32) | w1, (w2 << bits32) | w3
    # A shift by 64 is undefined: the kernel branches, and so does this.
    carried = np.where(shift > 0, low >> ((bits64 - shift) % bits64), np.uint64(0))
    high, low = (high << shift) | carried, low << shift
    phase = mantissa * high + ((mantissa * (low >> bits32)) >> bits32)
    phase = np.where((bits & np.uint64(0x80000000)) > 0, np.uint64(0) - phase, phase)
    return np.where(nothing, np.uint64(0), phase).astype(np.uint64)
