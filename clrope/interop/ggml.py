"""ggml's rope operators with their own arguments: `rope_ext`, `rope_multi`, backward, in place, and into a KV cache.

Tensors are NumPy (or torch CPU, PyOpenCL) arrays in C order, `[B, S, N, D]` being ggml's `ne = [D, N, S, B]`, with
leading axes left out as ggml leaves out trailing ones; or a `Tensor`, memory described by `ne` and `nb`. Parameters are
rounded to float32, as a C call does. What `ggml.h` and `ggml-cpu` assert is a `ShapeError` or `ConfigError` here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..api import rope
from ..arguments import MOST_COUNT, integer, sequence
from ..arrays import is_opencl_array, operand
from ..config import GGML_MODES, Angles, RopeConfig, parse_mode
from ..errors import ConfigError, ShapeError, reading, renamed, shown, unreadable
from ..integers import is_integer
from ..layout import DTYPES
from ..positions import integers

__all__ = [
    "OpParams",
    "Tensor",
    "rope_ext",
    "rope_ext_back",
    "rope_ext_inplace",
    "rope_multi",
    "rope_multi_back",
    "rope_multi_inplace",
    "rope_set_rows",
]

#: Element types by ggml's names; `GGML_TYPES` gives the numbers of `enum ggml_type`.
GGML_TYPES: dict[str, int] = {"f32": 0, "f16": 1, "i32": 26, "i64": 27, "f64": 28, "bf16": 30}
_INTEGERS: dict[str, np.dtype[Any]] = {"i32": np.dtype(np.int32), "i64": np.dtype(np.int64)}
TYPES: dict[str, np.dtype[Any]] = {name: kind for name, kind in (DTYPES | _INTEGERS).items() if name in GGML_TYPES}
_TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}
_MROPE = GGML_MODES["mrope"]
#: NumPy has no more; for sequences that do not end.
_MOST_NUMBERS = 64


@dataclass(eq=False)
class Tensor:
    """Memory seen as a ggml tensor.

    data:      anything with the buffer protocol, or a C-order NumPy array of any type.
    type:      'f32', 'f16', 'bf16', 'f64', 'i32', 'i64', or the number in `enum ggml_type`.
    ne:        1 to 4 lengths, fastest axis first.
    nb:        strides in bytes, in the same order; None: dense.
    view_offs: bytes from the start of `data` to the first element.

    Raises `ShapeError` for an unknown type, more than four axes, numbers that are no integers or below 0, or elements
    outside `data`.
    """

    data: Any
    type: str | int
    ne: Sequence[int]
    nb: Sequence[int] | None = None
    view_offs: int = 0

    def __post_init__(self) -> None:
        numbers = {number: name for name, number in GGML_TYPES.items()}
        name = numbers.get(int(self.type), "") if is_integer(self.type) else self.type
        if not isinstance(name, str) or name not in TYPES:
            allowed = ", ".join(f"{n!r} ({GGML_TYPES[n]})" for n in TYPES)
            raise ShapeError(f"type: got {shown(self.type)}, allowed are {allowed}")
        self.type = name
        self.ne = _counts("ne", self.ne)
        if not 1 <= len(self.ne) <= 4:
            raise ShapeError(f"ne: got {self.ne}, 1 to 4 lengths are needed")
        item = TYPES[name].itemsize
        # NumPy counts the axes of an empty array, too.
        if math.prod(max(1, n) for n in self.ne) * item > MOST_COUNT:
            raise ShapeError(f"ne: got {self.ne}, whose elements are beyond 64-bit byte addresses")
        if self.nb is None:
            self.nb = [item * math.prod(self.ne[:axis]) for axis in range(len(self.ne))]
        self.nb = _counts("nb", self.nb)
        if len(self.nb) != len(self.ne):
            raise ShapeError(f"nb: got {self.nb}, {len(self.ne)} byte strides of at least 0 are needed, one per ne")
        self.view_offs = integer("view_offs", self.view_offs, 0, refuse=ShapeError)
        memory = np.frombuffer(_bytes(self.data), np.uint8)
        last = self.view_offs + sum((n - 1) * step for n, step in zip(self.ne, self.nb, strict=True)) + item
        if 0 not in self.ne and last > memory.size:
            raise ShapeError(
                f"ne, nb: {self.ne}, {self.nb} at offset {self.view_offs} reach from byte {self.view_offs} to {last}, "
                f"data has {memory.size}"
            )
        self._memory = memory

    def array(self) -> npt.NDArray[Any]:
        """Return the elements as a NumPy view, axes in C order (ne reversed)."""
        assert self.nb is not None
        shape, strides = tuple(self.ne[::-1]), tuple(self.nb[::-1])
        if 0 in shape:
            return np.empty(shape, TYPES[str(self.type)])
        return np.ndarray(shape, TYPES[str(self.type)], self._memory.data, self.view_offs, strides)


@dataclass(frozen=True)
class OpParams:
    """The parameters of a rope node, `op_params` of its `ggml_tensor`: int32[16], floats as their bits.

    mode is one of 0 (normal), 2 (NeoX), 8 (M-RoPE), 24 (vision), 40 (interleaved M-RoPE), or this package's name of it.
    Floats are rounded to float32; sections are zero but in modes with bit 8, as ggml stores them.
    """

    n_dims: int
    mode: int
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    sections: tuple[int, int, int, int] = (0, 0, 0, 0)
    n_offs: int = 0

    def __post_init__(self) -> None:
        if is_integer(self.mode) and int(self.mode) & 1:
            raise ConfigError(f"mode: got {shown(self.mode)}, odd modes are no longer supported by ggml")
        put = object.__setattr__  # frozen dataclass
        put(self, "mode", GGML_MODES[parse_mode(self.mode)])
        for name in ("n_dims", "n_ctx_orig", "n_offs"):
            put(self, name, _int32(name, getattr(self, name)))
        for name in _FLOATS:
            put(self, name, _float32(name, getattr(self, name)))
        given = sequence("sections", self.sections, _MOST_NUMBERS)
        if len(given) != 4:
            raise ConfigError(f"sections: got {len(given)} numbers, ggml takes 4 (t, h, w, e)")
        counts = tuple(_int32(f"sections[{i}]", n) for i, n in enumerate(given))
        put(self, "sections", counts if self.mode & _MROPE else (0, 0, 0, 0))

    def encode(self) -> npt.NDArray[np.int32]:
        """Return the int32[16] that ggml keeps."""
        params = np.zeros(16, np.int32)
        params[[1, 2, 4]] = self.n_dims, self.mode, self.n_ctx_orig
        params[5:11] = np.array([getattr(self, name) for name in _FLOATS], np.float32).view(np.int32)
        params[11:15] = self.sections
        params[15] = self.n_offs
        return params

    @classmethod
    def decode(cls, params: Any) -> OpParams:
        """Read int32[16] (an array, a sequence, or 64 bytes); raise `ShapeError` for any other size or type."""
        if isinstance(params, (bytes, bytearray)):
            if len(params) != 64:
                raise ShapeError(f"op_params: got {len(params)} bytes, 64 are needed")
            params = np.frombuffer(params, np.int32)
        raw = integers(params, "op_params")
        if raw.shape != (16,):
            raise ShapeError(f"op_params: got {raw.dtype}{list(raw.shape)}, int32[16] is needed")
        # Of a list its own numbers, since NumPy makes integers of the bools among them.
        given = params if isinstance(params, (list, tuple)) else raw
        words = [_int32(f"op_params[{i}]", word) for i, word in enumerate(given)]
        floats = np.array(words[5:11], np.int32).view(np.float32)
        named = {name: float(value) for name, value in zip(_FLOATS, floats, strict=True)}
        t, h, w, e = words[11:15]
        return cls(words[1], words[2], words[4], **named, sections=(t, h, w, e), n_offs=words[15])

    def config(self, c: Sequence[float] | None = None, *, angles: Angles = "exact") -> RopeConfig:
        """Return the same as a `RopeConfig`; c: freq_factors. Raises `ConfigError`."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        if not self.mode & _MROPE:
            del given["sections"]
        with renamed({"freq_factors": "c"}):
            return RopeConfig(**given, freq_factors=c, angles=angles)  # type: ignore[arg-type]

    @classmethod
    def of_config(cls, config: RopeConfig) -> OpParams:
        """Return the parameters of a configuration with n_dims set; its freq_factors are ggml's tensor c."""
        if not isinstance(config, RopeConfig):
            raise ConfigError(f"config: got {type(config).__name__}, a RopeConfig is needed")
        if config.n_dims is None:
            raise ConfigError("n_dims: not set, op_params need it")
        if config.pair_axes is not None or config.coordinate_scale != 1:
            raise ConfigError("config: got pair_axes or coordinate_scale, ggml has neither")
        given = {f.name: getattr(config, f.name) for f in fields(cls)}
        return cls(**{**given, "mode": config.ggml_mode, "sections": config.sections or (0, 0, 0, 0)})


_FLOATS = ("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")


def rope_ext(
    a: Any, b: Any, c: Any, n_dims: int, mode: int, n_ctx_orig: int, freq_base: float, freq_scale: float,
    ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_ext`: rotate `a` by positions `b` and return a new dense tensor of its kind.

    a:      float16 or float32, `[B, S, N, D]` or lower rank (`ne = [D, N, S, B]`), heads dense; or a `Tensor`.
    b:      int32 positions, one per token.
    c:      None, or float32 frequency factors, one per pair at least.
    n_offs: what `ggml_rope_set_offset` sets: first rotated element of a head, even.
    angles: 'exact', or 'ggml' for its repeated float32 multiplication. device: as for `clrope.rope`.
    The other arguments are those of `RopeConfig`, which has ggml's names.

    Raises `ShapeError`, `ConfigError`, `DeviceError`, `BuildError` before anything is launched.
    """
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, n_offs=n_offs
    )
    return _rope(params, a, b, c, angles, device)


def rope_ext_inplace(
    a: Any, b: Any, c: Any, n_dims: int, mode: int, n_ctx_orig: int, freq_base: float, freq_scale: float,
    ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_ext_inplace`: as `rope_ext`, in the memory of `a`, which is returned."""
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, n_offs=n_offs
    )
    return _rope(params, a, b, c, angles, device, inplace=True)


def rope_ext_back(
    a: Any, b: Any, c: Any, n_dims: int, mode: int, n_ctx_orig: int, freq_base: float, freq_scale: float,
    ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_ext_back`: as `rope_ext` with the sign of sin flipped (the transpose, also of the magnitude)."""
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, n_offs=n_offs
    )
    return _rope(params, a, b, c, angles, device, forward=False)


def rope_multi(
    a: Any, b: Any, c: Any, n_dims: int, sections: Sequence[int] | None, mode: int, n_ctx_orig: int,
    freq_base: float, freq_scale: float, ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_multi`: as `rope_ext`, with pairs driven by four position rows in modes 8, 24 and 40.

    b: int32[4 * S], the rows t, h, w, e in this order, shared by the batches; in modes 0 and 2 int32[S].
    sections: 4 counts of pairs (ignored in modes 0 and 2, as ggml does). Mode 24 needs n_dims = D / 2.
    """
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow,
        _sections(sections), n_offs,
    )  # fmt: skip
    return _rope(params, a, b, c, angles, device)


def rope_multi_inplace(
    a: Any, b: Any, c: Any, n_dims: int, sections: Sequence[int] | None, mode: int, n_ctx_orig: int,
    freq_base: float, freq_scale: float, ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_multi_inplace`: as `rope_multi`, in the memory of `a`, which is returned."""
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow,
        _sections(sections), n_offs,
    )  # fmt: skip
    return _rope(params, a, b, c, angles, device, inplace=True)


def rope_multi_back(
    a: Any, b: Any, c: Any, n_dims: int, sections: Sequence[int] | None, mode: int, n_ctx_orig: int,
    freq_base: float, freq_scale: float, ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_rope_multi_back`: as `rope_multi` with the sign of sin flipped."""
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow,
        _sections(sections), n_offs,
    )  # fmt: skip
    return _rope(params, a, b, c, angles, device, forward=False)


def rope_set_rows(
    dst: Any, a: Any, b: Any, c: Any, row_indices: Any, n_dims: int, mode: int, n_ctx_orig: int, freq_base: float,
    freq_scale: float, ext_factor: float, attn_factor: float, beta_fast: float, beta_slow: float,
    *, sections: Sequence[int] | None = None, n_offs: int = 0, angles: Angles = "exact", device: Any = None,
) -> Any:  # fmt: skip
    """`ggml_set_rows(dst, view of ggml_rope_*(a, ...), row_indices)`: rotate, and store tokens as rows of a KV cache.

    a:           `[S, N, D]` (or `[B, S, N, D]`) in host memory; the other arguments of `rope_ext` and `rope_multi`.
    dst:         float16 or float32 `[rows, N * D]` (`ne = [D * N, rows]`), or `[B, rows, N * D]`; rows dense, in host
                 memory. Row `row_indices[s]` becomes token s, converted with rounding to nearest even; rows that no
                 index names keep their bytes; where an index comes twice, the later token stays.
    row_indices: int64 (or int32) [S], or [m, S] with B a multiple of m: batch b uses row b mod m. Each in [0, rows).

    Returns dst. Raises as `rope_ext` does, before dst is changed; also for an index outside dst.
    """
    params = OpParams(
        n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow,
        _sections(sections), n_offs,
    )  # fmt: skip
    source = _four_axes(a)[0]
    if isinstance(dst, (list, tuple)):  # of which NumPy makes an array of its own
        raise ShapeError(f"dst: got {type(dst).__name__}, an array or a Tensor is needed")
    target = _host(dst, "dst", ("f16", "f32"))
    rows = _host(row_indices, "row_indices", ("i64", "i32"))
    batch, seq, heads, head_dim = source.shape
    if not target.flags.writeable:
        raise ShapeError("dst: the array is read-only")
    if is_opencl_array(source):
        raise ShapeError("a: got an OpenCL array, rope_set_rows stores into host memory and needs a there too")
    cache = target[(None,) * (4 - target.ndim) + (Ellipsis,)]
    if cache.ndim > 4 or cache.shape[:2] != (1, batch) or cache.shape[3] != heads * head_dim:
        wanted = f"[{batch}, rows, {heads * head_dim}]" + (f" or [rows, {heads * head_dim}]" if batch == 1 else "")
        raise ShapeError(f"dst: got shape {list(target.shape)}, {wanted} is needed for a of shape {list(source.shape)}")
    if cache.strides[3] != cache.itemsize and cache.shape[3] > 1:
        raise ShapeError(f"dst: nb[0] is {cache.strides[3]}, rows must be dense (nb[0] = {cache.itemsize})")
    groups = math.prod(rows.shape[:-1]) if rows.ndim else 0
    if rows.ndim == 0 or rows.shape[-1] != seq or math.prod(rows.shape[:-2]) != 1 or not groups or batch % groups:
        raise ShapeError(
            f"row_indices: got shape {list(rows.shape)}, [{seq}] or [m, {seq}] is needed, {batch} a multiple of m"
        )
    outside = rows[(rows < 0) | (rows >= cache.shape[2])]
    if outside.size:
        raise ShapeError(f"row_indices: got {int(outside[0])}, dst has rows 0 ... {cache.shape[2] - 1}")
    rotated = np.asarray(_rope(params, source, b, c, angles, device)).reshape(batch, seq, heads * head_dim)
    rows = rows.reshape(groups, seq)
    with np.errstate(over="ignore"):  # beyond float16 is infinity, as IEEE says
        for i in range(batch):
            cache[0, i][rows[i % groups]] = rotated[i].astype(cache.dtype)
    return dst


def _rope(
    params: OpParams, a: Any, b: Any, c: Any, angles: Angles, device: Any, forward: bool = True, inplace: bool = False
) -> Any:
    source, rank = _four_axes(a)
    seq, head_dim = source.shape[1], source.shape[3]
    positions = _positions(b, params.mode, seq)
    factors = None if c is None else _factors(c)
    config = params.config(factors, angles=angles)
    if sum(params.sections) > head_dim:
        raise ConfigError(f"sections: got {params.sections}, their sum may be at most ne[0] = {head_dim}")
    with renamed({"x": "a", "out": "a", "positions": "b", "freq_factors": "c"}):
        got = rope(source, positions, config, forward, out=source if inplace else None, device=device)
    if inplace:
        return a
    if isinstance(a, Tensor):
        return Tensor(got, a.type, a.ne)
    return got.reshape(a.shape) if rank < 4 else got


def _four_axes(a: Any) -> tuple[Any, int]:
    """Return `a` as an array `[B, S, N, D]` on the same memory, and its rank; check what ggml asserts."""
    array = a.array() if isinstance(a, Tensor) else a
    with reading("a", a):
        rank = len(getattr(array, "shape", ()))
        if not 1 <= rank <= 4:
            what = f"rank {rank}" if hasattr(array, "shape") else type(array).__name__
            raise ShapeError(f"a: got {what}, a tensor of 1 to 4 axes is needed")
        array = array[(None,) * (4 - rank) + (Ellipsis,)] if rank < 4 else array
    view = operand(array, "bsnd", "a").view
    if view.dtype not in ("f16", "f32"):
        raise ShapeError(f"a: got type {view.dtype}, ggml rotates f32 and f16 (clrope.rope takes bf16 and f64 too)")
    if view.size and not view.last_axis_dense:
        raise ShapeError(f"a: nb[0] is {view.strides[3] * view.itemsize}, ggml needs {view.itemsize} (dense heads)")
    return array, rank


def _host(t: Any, name: str, types: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return a tensor in host memory as a NumPy array of one of the types."""
    if is_opencl_array(t):
        raise ShapeError(f"{name}: got an OpenCL array, host memory is needed")
    if isinstance(t, np.ma.MaskedArray):
        raise ShapeError(f"{name}: got a masked array, whose mask would be ignored; pass its `data`")
    with reading(name, t):  # a ragged list, for one, or a torch type that NumPy has not
        array = t.array() if isinstance(t, Tensor) else np.asarray(t)
    if _TYPE_NAMES.get(array.dtype) not in types:
        raise ShapeError(f"{name}: got dtype {array.dtype}, ggml takes {' or '.join(str(TYPES[n]) for n in types)}")
    return array


def _vector(t: Any, name: str, type_name: str) -> npt.NDArray[Any]:
    array = _host(t, name, (type_name,))
    if array.ndim == 0 or array.size != array.shape[-1]:
        raise ShapeError(f"{name}: got shape {list(array.shape)}, a vector is needed")
    return array.reshape(-1)


def _positions(b: Any, mode: int, seq: int) -> npt.NDArray[Any]:
    if isinstance(b, (list, tuple)):
        b = np.array([_int32(f"b[{i}]", p) for i, p in enumerate(b)], np.int32)
    positions = _vector(b, "b", "i32")
    rows = 4 if mode & _MROPE else 1
    if positions.size != rows * seq:
        text = f"4 * {seq} (t, h, w, e)" if rows == 4 else str(seq)
        raise ShapeError(f"b: got {positions.size} positions, mode {mode} needs {text} for ne[2] = {seq}")
    return positions.reshape(4, seq) if rows == 4 else positions


def _factors(c: Any) -> list[float]:
    if isinstance(c, (list, tuple)):
        return [_float32(f"c[{i}]", factor) for i, factor in enumerate(c)]
    return [float(factor) for factor in _vector(c, "c", "f32")]


def _sections(sections: Sequence[int] | None) -> tuple[int, int, int, int]:
    # As given: a set made a tuple would look like a sequence.
    return (0, 0, 0, 0) if sections is None else sections  # type: ignore[return-value]


def _int32(name: str, value: Any) -> int:
    if is_integer(value) and not -(1 << 31) <= int(value) < 1 << 31:
        raise ConfigError(f"{name}: got {shown(int(value))}, ggml keeps it in 32 bits")
    return integer(name, value, -(1 << 31))


def _counts(name: str, value: Any) -> list[int]:
    found = sequence(name, value, _MOST_NUMBERS, ShapeError)
    return [integer(f"{name}[{i}]", n, 0, refuse=ShapeError) for i, n in enumerate(found)]


def _float32(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, Real):
        raise ConfigError(f"{name}: got {shown(value)} of type {type(value).__name__}, a number is needed")
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(float(value)))
    except OverflowError:  # an integer beyond float64
        return -math.inf if value < 0 else math.inf
    except MemoryError:
        raise
    except Exception as error:
        raise ConfigError(unreadable(name, value, error)) from error


def _bytes(data: Any) -> Any:
    try:
        # bfloat16 has no buffer protocol; its bytes have.
        plain: Any = data.view(np.uint8) if isinstance(data, np.ndarray) and data.ndim else data
        memory = memoryview(plain)
        return memory.cast("B") if memory.nbytes else b""
    except (TypeError, ValueError):
        raise ShapeError(
            f"data: got {type(data).__name__}, a C-order array or an object with the buffer protocol is needed"
        ) from None
