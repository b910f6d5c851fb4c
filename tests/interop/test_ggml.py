"""ggml's operators: against the oracle with fresh random cases, against ggml itself where ggml-python is installed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pytest
from helpers import POISON, bits, short_name, touched

import clrope
from clrope import ConfigError, ShapeError
from clrope.interop import ggml

MODES = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
DTYPES = {"f16": np.float16, "f32": np.float32}
#: The float arguments that leave the angle as it is.
PLAIN = {"n_ctx_orig": 0, "freq_base": 1e4, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0, "beta_fast": 32.0,
         "beta_slow": 1.0}  # fmt: skip


@dataclass(eq=False)
class Call:
    """One call of ggml's rope: what a suite needs to make it here and in ggml."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    n_dims: int
    mode: int
    sections: tuple[int, int, int, int] | None
    floats: dict[str, Any]
    n_offs: int = 0
    forward: bool = True

    def fields(self) -> dict[str, Any]:
        """The oracle's configuration: parameters as float32, as a C call takes them."""
        name = {number: name for name, number in MODES.items()}[self.mode]
        rounded = {k: v if k == "n_ctx_orig" else float(np.float32(v)) for k, v in self.floats.items()}
        factors = None if self.c is None else [float(f) for f in self.c]
        return {"mode": name, "n_dims": self.n_dims, "freq_factors": factors, "sections": self.sections or (0, 0, 0, 0),
                "n_offs": self.n_offs, **rounded}  # fmt: skip

    def positions(self) -> np.ndarray:
        return self.b.reshape(4, -1) if self.mode & 8 else self.b

    def want(self) -> np.ndarray:
        """What the formulas give in float64; a missing leading axis is one of length 1."""
        a = self.a.reshape((1,) * (4 - self.a.ndim) + self.a.shape)
        return oracle.rope(a, self.positions(), self.fields(), self.forward).reshape(self.a.shape)

    def run(self, a: Any = None, *, inplace: bool = False, **options: Any) -> Any:
        """Call the function that fits, with `a` in place of the call's own."""
        kind = ("multi" if self.sections else "ext") + ("_inplace" if inplace else "" if self.forward else "_back")
        multi = {"sections": self.sections} if self.sections else {}
        given = {"b": self.b, "c": self.c, "n_dims": self.n_dims, "mode": self.mode, **multi, **self.floats}
        if self.n_offs:
            options["n_offs"] = self.n_offs
        function = getattr(ggml, f"rope_{kind}")
        return function(self.a if a is None else a, **given, **options)

    def __str__(self) -> str:
        return (
            f"mode {self.mode} {self.a.dtype}{list(self.a.shape)} n_dims {self.n_dims} n_offs {self.n_offs} sections "
            f"{self.sections} forward {self.forward} c {self.c is not None} {self.floats} b {self.b.tolist()}"
        )


def calls(
    rng: np.random.Generator, count: int, *, highest: int = 512, offsets: bool = True, largest: int = 16
) -> Iterator[Call]:
    """Yield random calls of all modes, for this file and for any suite; `largest` bounds the quarters of a head."""
    for _ in range(count):
        mode = int(rng.choice(list(MODES.values())))
        head_dim = 4 * int(rng.integers(2, largest + 1))
        n_dims = head_dim // 2 if mode == 24 else 2 * int(rng.integers(1, head_dim // 2 + 1))
        n_offs = 2 * int(rng.integers(0, (head_dim - n_dims) // 2 + 1)) if offsets and mode != 24 else 0
        pairs = n_dims if mode == 24 else n_dims // 2
        sections = None
        if mode & 8:
            counts = rng.integers(0, max(2, pairs // 2), 4)
            counts[rng.integers(0, 3)] += 1
            sections = tuple(int(n) for n in counts)
        shape = [int(n) for n in (rng.integers(1, 4), rng.integers(1, 8), rng.integers(1, 5), head_dim)]
        if rng.random() < 0.3:
            shape = shape[int(rng.integers(1, 4)) :]
        seq = shape[-3] if len(shape) > 2 else 1
        low = -highest if rng.random() < 0.2 else 0
        b = rng.integers(low, highest, seq * (4 if mode & 8 else 1), dtype=np.int32)
        yarn = bool(rng.random() < 0.5)
        floats = {
            "n_ctx_orig": int(rng.choice([512, 4096, 32768])) if yarn else 0,
            "freq_base": float(rng.choice([1e4, 5e5, 1e6 + 0.1])),
            "freq_scale": float(rng.uniform(0.1, 1.5)),
            "ext_factor": float(rng.uniform(0.1, 1)) if yarn else 0.0,
            "attn_factor": float(rng.uniform(0.7, 1.5)),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
        c = rng.uniform(0.9, 1.1, pairs).astype(np.float32) if rng.random() < 0.4 else None
        a = rng.uniform(-1, 1, shape).astype(rng.choice(list(DTYPES.values())))
        yield Call(a, b, c, n_dims, mode, sections, floats, n_offs, bool(rng.random() < 0.7))


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return clrope.compare(got, want).nmse


def limit(a: np.ndarray) -> float:
    return oracle.LIMITS["f16" if a.dtype == np.float16 else "f32"]


def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for call in calls(rng, 60):
        before = call.a.copy()
        got = call.run(device=device.index)
        assert got.shape == call.a.shape, call
        assert got.dtype == call.a.dtype, call
        assert nmse(got, call.want()) <= limit(call.a), call
        assert np.array_equal(bits(call.a), bits(before)), f"a was changed: {call}"
        if call.forward:
            assert call.run(call.a, inplace=True, device=device.index) is call.a
            assert np.array_equal(bits(call.a), bits(got)), f"in place: {call}"


def test_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    for angles in ("exact", "ggml"):
        for call in calls(rng, 20, highest=131072):
            first, *others = [call.run(angles=angles, device=d.index) for d in devices]
            for d, other in zip(devices[1:], others, strict=True):
                assert np.array_equal(bits(first), bits(other)), f"{short_name(d)}: {call}"


def test_parameters_are_rounded_to_float32(device: clrope.DeviceInfo) -> None:
    # 0.1 as float32 differs by 1.5e-9 from 0.1: visible far out.
    a = np.ones((1, 1, 8), np.float32)
    got = ggml.rope_ext(a, [10_000_000], None, 8, 2, **{**PLAIN, "freq_scale": 0.1}, device=device.index)
    sharp = clrope.reference.rope(a, 10_000_000, clrope.RopeConfig("neox", 8, freq_scale=0.1))
    rounded = clrope.reference.rope(a, 10_000_000, clrope.RopeConfig("neox", 8, freq_scale=float(np.float32(0.1))))
    assert nmse(got, rounded) < 1e-12
    assert nmse(got, sharp) > 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_views(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str) -> None:
    """A window of heads and elements in a larger tensor, given by ne, nb and view_offs."""
    item = np.dtype(DTYPES[dtype]).itemsize
    parent = np.full((2, 4, 5, 24), POISON, np.uint8).repeat(item).view(DTYPES[dtype])
    parent = parent.reshape(2, 4, 5, 24)
    view = parent[:, :, 1:4, 6:22]
    view[...] = rng.uniform(-1, 1, view.shape)
    before = parent.copy()
    nb = [item, 24 * item, 5 * 24 * item, 4 * 5 * 24 * item]
    a = ggml.Tensor(parent, dtype, [16, 3, 4, 2], nb, (24 + 6) * item)
    assert np.array_equal(bits(a.array()), bits(view))
    call = Call(view, rng.integers(0, 512, 4, dtype=np.int32), None, 12, 2, None, {**PLAIN, "freq_scale": 0.5})
    want = call.run(device=device.index)
    positions = ggml.Tensor(call.b.tobytes(), "i32", [4])
    got = ggml.rope_ext(a, positions, None, 12, 2, **call.floats, device=device.index)
    assert isinstance(got, ggml.Tensor)
    assert (got.type, got.ne, got.nb) == (dtype, [16, 3, 4, 2], [item, 16 * item, 48 * item, 192 * item])
    assert np.array_equal(bits(got.array()), bits(want))
    assert np.array_equal(bits(parent), bits(before))
    assert ggml.rope_ext_inplace(a, positions, None, 12, 2, **call.floats, device=device.index) is a
    assert np.array_equal(bits(view), bits(want))
    flat, flat_before = parent.reshape(-1), before.reshape(-1)
    outside = ~touched(flat, view)
    assert np.array_equal(bits(flat)[outside], bits(flat_before)[outside])


def test_other_kinds_of_array(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    queue = cl.CommandQueue(cl.Context([device.cl_device]))
    for call in calls(rng, 10):
        want = call.run(device=device.index)
        assert np.array_equal(bits(call.run(cla.to_device(queue, call.a)).get()), bits(want)), call


def test_torch_tensors(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    for call in calls(rng, 10):
        got = call.run(torch.from_numpy(call.a), device=device.index)
        assert np.array_equal(bits(got.numpy()), bits(call.run(device=device.index))), call


def test_nothing_to_rotate(device: clrope.DeviceInfo) -> None:
    for shape in ((0, 2, 8), (2, 3, 0, 8), (0, 3, 2, 8)):
        seq = shape[-3]
        got = ggml.rope_ext(np.empty(shape, np.float32), np.zeros(seq, np.int32), None, 8, 0, **PLAIN)
        assert got.shape == shape


# Rows of a cache


def set_rows(call: Call, dst: Any, rows: Any, **options: Any) -> Any:
    return ggml.rope_set_rows(
        dst, call.a, call.b, call.c, rows, call.n_dims, call.mode, sections=call.sections, n_offs=call.n_offs,
        **call.floats, **options,
    )  # fmt: skip


@pytest.mark.parametrize("to", DTYPES)
def test_rows_of_a_cache(device: clrope.DeviceInfo, rng: np.random.Generator, to: str) -> None:
    for call in calls(rng, 20):
        if call.a.ndim < 3 or not call.forward:
            continue
        *batches, seq, heads, head_dim = call.a.shape
        batch = batches[0] if batches else 1
        total, width = seq + 3, heads * head_dim
        parent = np.full((batch, total, width + 5), POISON, np.uint8).repeat(np.dtype(DTYPES[to]).itemsize)
        parent = parent.view(DTYPES[to]).reshape(batch, total, width + 5)
        before = parent.copy()
        dst = parent[0, :, 2 : width + 2] if batch == 1 else parent[:, :, 2 : width + 2]
        groups = int(rng.choice([m for m in range(1, batch + 1) if batch % m == 0]))
        rows = np.array([rng.permutation(total)[:seq] for _ in range(groups)], np.int64)
        assert set_rows(call, dst, rows[0] if groups == 1 else rows, device=device.index) is dst, call
        rotated = call.run(device=device.index).reshape(batch, seq, width)
        for i in range(batch):
            before[i, rows[i % groups], 2 : width + 2] = rotated[i].astype(DTYPES[to])
        assert np.array_equal(bits(parent), bits(before)), call


def test_the_later_token_stays_in_a_row(device: clrope.DeviceInfo) -> None:
    a = np.arange(1, 13, dtype=np.float32).reshape(3, 1, 4)
    dst = np.full((2, 4), -7, np.float16)
    ggml.rope_set_rows(dst, a, [0, 0, 0], None, np.array([1, 0, 1]), 4, 0, **PLAIN, device=device.index)
    assert dst.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]


def test_halves_are_rounded_to_nearest_even(device: clrope.DeviceInfo) -> None:
    # 2049 and 2051 lie between two halves, 70000 beyond the last.
    a = np.array([2049, 2051, 70000, -1e-9], np.float32).reshape(1, 1, 4)
    dst = np.full((1, 4), -7, np.float16)
    ggml.rope_set_rows(dst, a, [0], None, np.array([0]), 4, 0, **PLAIN, device=device.index)
    assert dst.tolist() == [[2048, 2052, np.inf, -0.0]]


# Parameters


def test_op_params_round_trip(rng: np.random.Generator) -> None:
    for call in calls(rng, 50):
        made = ggml.OpParams(
            call.n_dims, call.mode, **call.floats, sections=call.sections or (0, 0, 0, 0), n_offs=call.n_offs
        )
        words = made.encode()
        assert words.dtype == np.int32
        assert words.shape == (16,)
        assert ggml.OpParams.decode(words) == made
        assert ggml.OpParams.decode(words.tobytes()) == made
        assert ggml.OpParams.of_config(made.config(call.c)) == made
        assert [words[i] for i in (0, 1, 2, 3, 4, 15)] == [
            0, call.n_dims, call.mode, 0, call.floats["n_ctx_orig"], call.n_offs,
        ]  # fmt: skip
        assert words[5:11].view(np.float32).tolist() == [
            float(np.float32(v)) for k, v in call.floats.items() if k != "n_ctx_orig"
        ]
        assert tuple(words[11:15]) == (call.sections or (0, 0, 0, 0))


def test_sections_without_meaning_are_dropped(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    a = rng.uniform(-1, 1, (3, 2, 8)).astype(np.float32)
    plain = ggml.rope_ext(a, [1, 2, 3], None, 8, 2, **PLAIN, device=device.index)
    got = ggml.rope_multi(a, [1, 2, 3], None, 8, [1, 1, 1, 1], 2, **PLAIN, device=device.index)
    assert np.array_equal(bits(got), bits(plain))


# Refusals

A = np.ones((5, 2, 8), np.float32)
B = np.arange(5, dtype=np.int32)
REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "odd mode": (lambda: ggml.rope_ext(A, B, None, 8, 1, **PLAIN), ConfigError, r"^mode: got 1, odd modes"),
    "unknown mode": (lambda: ggml.rope_ext(A, B, None, 8, 4, **PLAIN), ConfigError, r"^mode: got 4, allowed are .*40"),
    "b int64": (lambda: ggml.rope_ext(A, B.astype(np.int64), None, 8, 2, **PLAIN), ShapeError, r"^b: got dtype int64"),
    "b not a vector": (
        lambda: ggml.rope_ext(A, np.zeros((5, 2), np.int32), None, 8, 2, **PLAIN), ShapeError, r"^b: got shape \[5, 2\]"
    ),
    "b length": (lambda: ggml.rope_ext(A, B[:4], None, 8, 2, **PLAIN), ShapeError, r"^b: got 4 .* needs 5 for ne\[2\]"),
    "b of multi": (
        lambda: ggml.rope_multi(A, B, None, 8, [1, 1, 1, 1], 8, **PLAIN), ShapeError, r"^b: got 5 .* 4 \* 5"
    ),
    "b too large": (lambda: ggml.rope_ext(A[:1], [1 << 31], None, 8, 2, **PLAIN), ConfigError, r"^b\[0\]: .* 32 bits"),
    "c dtype": (lambda: ggml.rope_ext(A, B, np.ones(4), 8, 2, **PLAIN), ShapeError, r"^c: got dtype float64"),
    "c short": (
        lambda: ggml.rope_ext(A, B, np.ones(3, np.float32), 8, 2, **PLAIN), ConfigError, r"^c: got 3, one per .*: 4"
    ),
    "c zero": (lambda: ggml.rope_ext(A, B, [1, 1, 0, 1], 8, 2, **PLAIN), ConfigError, r"^c\[2\]: got 0"),
    "n_dims odd": (lambda: ggml.rope_ext(A, B, None, 7, 2, **PLAIN), ConfigError, r"^n_dims: got 7, it must be even"),
    "n_dims large": (lambda: ggml.rope_ext(A, B, None, 10, 2, **PLAIN), ConfigError, r"^n_dims: got 10, at most .* 8"),
    "n_dims float": (lambda: ggml.rope_ext(A, B, None, 8.0, 2, **PLAIN), ConfigError, r"^n_dims: got 8.0 of type flo"),  # type: ignore[arg-type]
    "vision n_dims": (
        lambda: ggml.rope_multi(A, np.zeros(20, np.int32), None, 8, [1, 1, 0, 0], 24, **PLAIN), ConfigError,
        r"^n_dims: got 8, mode 'vision' needs head_dim / 2 = 4",
    ),
    "multi without sections": (
        lambda: ggml.rope_ext(A, np.zeros(20, np.int32), None, 8, 8, **PLAIN), ConfigError, r"^sections: got \(0, 0, 0"
    ),
    "three sections": (
        lambda: ggml.rope_multi(A, np.zeros(20, np.int32), None, 8, [1, 1, 1], 8, **PLAIN), ConfigError,
        r"^sections: got 3 numbers, ggml takes 4",
    ),
    "sections large": (
        lambda: ggml.rope_multi(A, np.zeros(20, np.int32), None, 8, [3, 3, 3, 0], 8, **PLAIN), ConfigError,
        r"^sections: .* at most ne\[0\] = 8",
    ),
    "sections no list": (lambda: ggml.rope_multi(A, B, None, 8, 3, 8, **PLAIN), ConfigError, r"^sections: got 3,"),  # type: ignore[arg-type]
    "n_offs odd": (lambda: ggml.rope_ext(A, B, None, 4, 2, **PLAIN, n_offs=1), ConfigError, r"^n_offs: got 1, .* even"),
    "n_offs large": (
        lambda: ggml.rope_ext(A, B, None, 6, 2, **PLAIN, n_offs=4), ConfigError, r"^n_offs \+ n_dims: got 4 \+ 6, at mo"
    ),
    "n_offs vision": (
        lambda: ggml.rope_multi(A, np.zeros(20, np.int32), None, 4, [1, 1, 0, 0], 24, **PLAIN, n_offs=2), ConfigError,
        r"^n_offs: got 2, mode 'vision'",
    ),
    "freq_base": (
        lambda: ggml.rope_ext(A, B, None, 8, 2, **{**PLAIN, "freq_base": 1e300}), ConfigError, r"^freq_base: got inf"
    ),
    "freq_scale": (
        lambda: ggml.rope_ext(A, B, None, 8, 2, **{**PLAIN, "freq_scale": "1"}), ConfigError, r"^freq_scale: got '1'"
    ),
    "betas": (
        lambda: ggml.rope_ext(A, B, None, 8, 2, **{**PLAIN, "ext_factor": 1.0, "beta_fast": 0.0}), ConfigError,
        r"^beta_fast .* must be greater than 0",
    ),
    "a dtype": (lambda: ggml.rope_ext(A.astype(np.float64), B, None, 8, 2, **PLAIN), ShapeError, r"^a: got type f64"),
    "a integers": (lambda: ggml.rope_ext(A.astype(np.int32), B, None, 8, 2, **PLAIN), ShapeError, r"^a: got dtype int"),
    "a rank": (lambda: ggml.rope_ext(A[None, None], B, None, 8, 2, **PLAIN), ShapeError, r"^a: got rank 5"),
    "a no array": (lambda: ggml.rope_ext([1.0], B, None, 8, 2, **PLAIN), ShapeError, r"^a: got list"),
    "a not dense": (lambda: ggml.rope_ext(A[..., ::2], B, None, 4, 2, **PLAIN), ShapeError, r"^a: nb\[0\] is 8"),
    "a read-only": (
        lambda: ggml.rope_ext_inplace(read_only(), B, None, 8, 2, **PLAIN), ShapeError, r"^a: the array is read-only"
    ),
    "tensor type": (lambda: ggml.Tensor(A, "q4_0", [8]), ShapeError, r"^type: got 'q4_0', allowed are 'f16' \(1\)"),
    "tensor ne": (lambda: ggml.Tensor(A, 0, [1, 1, 1, 1, 1]), ShapeError, r"^ne: got \[1, 1, 1, 1, 1\]"),
    "tensor nb": (lambda: ggml.Tensor(A, 0, [8, 2], [4]), ShapeError, r"^nb: got \[4\], 2 byte strides"),
    "tensor outside": (lambda: ggml.Tensor(A, 0, [8, 10], None, 4), ShapeError, r"from byte 4 to 324, data has 320"),
    "tensor data": (lambda: ggml.Tensor(A[:, ::2], 0, [8]), ShapeError, r"^data: got ndarray, a C-order array"),
    "op_params": (lambda: ggml.OpParams.decode(np.zeros(15, np.int32)), ShapeError, r"^op_params: got int32\[15\]"),
    "of_config": (lambda: ggml.OpParams.of_config(clrope.RopeConfig("neox")), ConfigError, r"^n_dims: not set"),
}  # fmt: skip


def read_only() -> np.ndarray:
    made = A.copy()
    made.flags.writeable = False
    return made


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, kind, message = REFUSALS[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("dst", "rows", "message"),
    [
        (np.zeros((9, 15), np.float32), B.astype(np.int64), r"^dst: got shape \[9, 15\], .*\[rows, 16\] is needed"),
        (np.zeros((2, 9, 16), np.float32), B.astype(np.int64), r"^dst: got shape \[2, 9, 16\]"),
        (np.zeros((9, 16), np.float64), B.astype(np.int64), r"^dst: got dtype float64"),
        (np.zeros((9, 32), np.float32)[:, ::2], B.astype(np.int64), r"^dst: nb\[0\] is 8"),
        (np.zeros((9, 16), np.float32), B.astype(np.int16), r"^row_indices: got dtype int16"),
        (np.zeros((9, 16), np.float32), B[:4].astype(np.int64), r"^row_indices: got shape \[4\]"),
        (np.zeros((9, 16), np.float32), np.zeros((2, 5), np.int64), r"^row_indices: got shape \[2, 5\]"),
        (np.zeros((9, 16), np.float32), np.array([0, 1, 2, 3, 9]), r"^row_indices: got 9, dst has rows 0 ... 8"),
        (np.zeros((9, 16), np.float32), np.array([0, 1, 2, 3, -1]), r"^row_indices: got -1, dst has rows 0 ... 8"),
    ],
)
def test_refusals_of_rows(dst: np.ndarray, rows: np.ndarray, message: str) -> None:
    before = dst.copy()
    with pytest.raises(ShapeError, match=message):
        ggml.rope_set_rows(dst, A, B, None, rows, 8, 2, **PLAIN)
    assert np.array_equal(dst, before)


def test_a_read_only_cache_is_refused() -> None:
    dst = np.zeros((9, 16), np.float32)
    dst.flags.writeable = False
    with pytest.raises(ShapeError, match=r"^dst: the array is read-only"):
        ggml.rope_set_rows(dst, A, B, None, B.astype(np.int64), 8, 2, **PLAIN)


# ggml itself


class Live:
    """The same call in ggml's own CPU code, by ggml-python."""

    def __init__(self) -> None:
        self.g: Any = pytest.importorskip("ggml")
        self.ctx = self.g.ggml_init(self.g.ggml_init_params(mem_size=256 << 20, mem_buffer=None, no_alloc=False))
        self.types = {np.dtype(np.float16): self.g.GGML_TYPE_F16, np.dtype(np.float32): self.g.GGML_TYPE_F32,
                      np.dtype(np.int32): self.g.GGML_TYPE_I32, np.dtype(np.int64): self.g.GGML_TYPE_I64}  # fmt: skip

    def close(self) -> None:
        self.g.ggml_free(self.ctx)

    def memory(self, tensor: Any, count: int, dtype: Any) -> np.ndarray:
        """The first elements of a tensor's memory, dense."""
        pointer = ctypes.cast(self.g.ggml_get_data(tensor), ctypes.POINTER(ctypes.c_uint8))
        return np.ctypeslib.as_array(pointer, (count * np.dtype(dtype).itemsize,)).view(dtype)

    def tensor(self, array: np.ndarray) -> Any:
        ne = [*array.shape[::-1], 1, 1, 1][:4]
        made = self.g.ggml_new_tensor_4d(self.ctx, self.types[array.dtype], *ne)
        self.memory(made, array.size, array.dtype)[...] = array.reshape(-1)
        return made

    def node(self, call: Call, a: Any, inplace: bool = False) -> Any:
        kind = ("multi" if call.sections else "ext") + ("_inplace" if inplace else "" if call.forward else "_back")
        sections = [(ctypes.c_int * 4)(*call.sections)] if call.sections else []
        c = None if call.c is None else self.tensor(call.c)
        function = getattr(self.g, f"ggml_rope_{kind}")
        return function(
            self.ctx, a, self.tensor(call.b), c, call.n_dims, *sections, call.mode, *call.floats.values()
        )  # fmt: skip

    def compute(self, node: Any) -> None:
        graph = self.g.ggml_new_graph(self.ctx)
        self.g.ggml_build_forward_expand(graph, node)
        assert self.g.ggml_graph_compute_with_ctx(self.ctx, graph, 1) == 0

    def run(self, call: Call, inplace: bool = False) -> np.ndarray:
        node = self.node(call, self.tensor(call.a), inplace)
        self.compute(node)
        return self.memory(node, call.a.size, call.a.dtype).reshape(call.a.shape).copy()


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


def test_live_exact_angles(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live) -> None:
    """ggml's own limit, at the positions of its own tests."""
    for call in calls(rng, 150, offsets=False, largest=32):
        assert nmse(call.run(device=device.index), live.run(call)) <= 1e-7, call


@pytest.mark.parametrize(("dtype", "allowed"), [("f32", 1e-9), ("f16", 1e-8)])
def test_live_ggml_angles(
    device: clrope.DeviceInfo, rng: np.random.Generator, live: Live, dtype: str, allowed: float
) -> None:
    for call in calls(rng, 150, highest=131072, offsets=False, largest=32):
        call.a = call.a.astype(DTYPES[dtype])
        got = call.run(angles="ggml", device=device.index)
        assert nmse(got, live.run(call, inplace=call.forward)) <= allowed, call


def test_live_views(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live) -> None:
    """A window of a parent, the same ne, nb and view_offs here and in ggml, in place: equal inside, untouched outside."""
    for call in calls(rng, 30, offsets=False):
        if call.a.ndim < 4 or not call.forward:
            continue
        dtype, item = call.a.dtype, call.a.dtype.itemsize
        batch, seq, heads, head_dim = call.a.shape
        parent = rng.uniform(-1, 1, (batch, seq, heads + 2, head_dim + 8)).astype(dtype)
        theirs = live.tensor(parent)
        nb, offset = [int(n) for n in theirs.contents.nb], (head_dim + 8 + 3) * item
        ne = [head_dim, heads, seq, batch]
        view = live.g.ggml_view_4d(live.ctx, theirs, *ne, *nb[1:], offset)
        live.compute(live.node(call, view, inplace=True))
        mine = parent.copy()
        call.run(ggml.Tensor(mine, ggml.GGML_TYPES.get("f16" if item == 2 else "f32", -1), ne, nb, offset),
                 inplace=True, angles="ggml", device=device.index)  # fmt: skip
        want = live.memory(theirs, parent.size, dtype).reshape(parent.shape)
        assert nmse(mine, want) <= (1e-9 if item == 4 else 1e-8), call
        outside = np.ones(parent.shape, dtype=bool)
        outside[:, :, 1 : heads + 1, 3 : head_dim + 3] = False
        assert np.array_equal(bits(mine)[outside], bits(parent)[outside]), call


@pytest.mark.parametrize("to", DTYPES)
def test_live_rows(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live, to: str) -> None:
    for call in calls(rng, 40, offsets=False):
        if call.a.ndim != 3 or not call.forward:
            continue
        seq, heads, head_dim = call.a.shape
        dst = rng.uniform(-1, 1, (seq + 4, heads * head_dim)).astype(DTYPES[to])
        rows = rng.permutation(seq + 4)[:seq].astype(np.int64)
        theirs = live.tensor(dst)
        rotated = live.node(call, live.tensor(call.a))
        flat = live.g.ggml_view_2d(live.ctx, rotated, heads * head_dim, seq, rotated.contents.nb[2], 0)
        live.compute(live.g.ggml_set_rows(live.ctx, theirs, flat, live.tensor(rows)))
        want = live.memory(theirs, dst.size, dst.dtype).reshape(dst.shape)
        set_rows(call, dst, rows, angles="ggml", device=device.index)
        assert nmse(dst, want) <= (1e-9 if to == "f32" and call.a.dtype == np.float32 else 1e-8), call


def test_live_op_params(rng: np.random.Generator, live: Live) -> None:
    for call in calls(rng, 30, offsets=False):
        node = live.node(call, live.tensor(call.a))
        words = np.array(node.contents.op_params[:16], np.int32)
        made = ggml.OpParams(call.n_dims, call.mode, **call.floats, sections=call.sections or (0, 0, 0, 0))
        assert made.encode().tolist() == words.tolist(), call
        assert ggml.OpParams.decode(words) == made, call
