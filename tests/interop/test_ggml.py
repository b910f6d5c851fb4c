"""ggml's operators against the oracle with fresh random calls; views, caches, parameters and every refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ggml_calls import DTYPES, PLAIN, Call, calls, limit, nmse, set_rows
from helpers import POISON, bits, short_name, touched

import clrope
from clrope import ConfigError, ShapeError
from clrope.interop import ggml


@pytest.mark.one_in(8)
def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    for call in calls(rng, 24):
        before = call.a.copy()
        got = call.run(device=device.index)
        assert got.shape == call.a.shape, call
        assert got.dtype == call.a.dtype, call
        assert nmse(got, call.want()) <= limit(call.a), call
        assert np.array_equal(bits(call.a), bits(before)), f"a was changed: {call}"
        if call.forward:
            assert call.run(call.a, inplace=True, device=device.index) is call.a
            assert np.array_equal(bits(call.a), bits(got)), f"in place: {call}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str) -> None:
    a = rng.uniform(-1, 1, (2, 40, 4, 64)).astype(DTYPES[dtype])
    call = Call(a, rng.integers(0, 1 << 20, 40, dtype=np.int32), None, 64, 2, None, PLAIN)
    assert nmse(call.run(device=device.index), call.want()) <= limit(a)


def test_devices_agree(devices: tuple[clrope.DeviceInfo, ...], rng: np.random.Generator) -> None:
    if len(devices) < 2:
        pytest.skip("one device has none to agree with")
    for angles in ("exact", "ggml"):
        for call in calls(rng, 8, highest=131072):
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


@pytest.mark.one_in(16)
def test_other_kinds_of_array(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    context = cl.Context([device.cl_device])  # kept: a queue of Intel's runtime does not hold its context
    queue = cl.CommandQueue(context)
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


@pytest.mark.one_in(8)
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
    # 2049 and 2051 are between two halves, 70000 beyond the last.
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
    "sections no list": (lambda: ggml.rope_multi(A, B, None, 8, 3, 8, **PLAIN), ConfigError, r"^sections: got 3 of ty"),  # type: ignore[arg-type]
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
    "op_params bytes": (lambda: ggml.OpParams.decode(b"123"), ShapeError, r"^op_params: got 3 bytes, 64 are needed"),
    "op_params": (lambda: ggml.OpParams.decode(np.zeros(15, np.int32)), ShapeError, r"^op_params: got int32\[15\]"),
    "of_config": (lambda: ggml.OpParams.of_config(clrope.RopeConfig("neox")), ConfigError, r"^n_dims: not set"),
}  # fmt: skip


#: Values that look like a sequence of numbers, and like a number, to Python's conversions.
SEQUENCES: dict[str, Any] = {
    "set": {1, 2, 3, 0}, "dict": {1: 0, 2: 0, 3: 0, 0: 0}, "bytes": bytes([1, 2, 3, 0]), "str": "1230", "none": None,
    "number": 4, "long": range(10**6),
}  # fmt: skip
NUMBERS: dict[str, Any] = {
    "float": 1.5, "whole float": 2.0, "bool": True, "numpy bool": np.bool_(True), "str": "1", "none": None,
    "bytes": b"1", "list": [1], "array": np.array([1]), "time": np.timedelta64(1, "s"), "nan": float("nan"),
    "huge": 10**5000, "list of huge": [10**5000], "complex": 1j,
}  # fmt: skip


@pytest.mark.parametrize("given", SEQUENCES.values(), ids=SEQUENCES)
def test_what_is_no_sequence_is_refused(given: Any) -> None:
    if given is not None:
        for call in (ggml.rope_multi, ggml.rope_multi_inplace, ggml.rope_multi_back):
            with pytest.raises(ConfigError, match=r"^sections: got"):
                call(A, np.zeros(20, np.int32), None, 8, given, 8, **PLAIN)
        with pytest.raises(ConfigError, match=r"^sections: got"):
            ggml.rope_set_rows(
                np.zeros((9, 16), np.float32), A, np.zeros(20, np.int32), None, B, 8, 8, **PLAIN, sections=given
            )
        with pytest.raises(ShapeError, match=r"^nb: got"):
            ggml.Tensor(A, 0, [8, 2, 5, 1], given)
        with pytest.raises(clrope.RopeError, match=r"^c(\[0\])?: got"):
            ggml.rope_ext(A, B, given, 8, 2, **PLAIN)
        with pytest.raises(ConfigError, match=r"^c: got"):
            ggml.OpParams(8, 2).config(given)
    with pytest.raises(ShapeError, match=r"^ne: got"):
        ggml.Tensor(A, 0, given)
    with pytest.raises(ShapeError, match=r"^op_params: got"):
        ggml.OpParams.decode(given)
    with pytest.raises(clrope.RopeError, match=r"^b: got"):
        ggml.rope_ext(A, given, None, 8, 2, **PLAIN)
    for dst in (given, [np.zeros(16, np.float32)] * 9):
        with pytest.raises(ShapeError, match=r"^dst: got"):
            ggml.rope_set_rows(dst, A, B, None, B, 8, 2, **PLAIN)
    with pytest.raises(ShapeError, match=r"^row_indices: got"):
        ggml.rope_set_rows(np.zeros((9, 16), np.float32), A, B, None, given, 8, 2, **PLAIN)


@pytest.mark.parametrize("given", NUMBERS.values(), ids=NUMBERS)
def test_what_is_no_integer_is_refused(given: Any) -> None:
    for name in ("n_dims", "n_ctx_orig", "n_offs"):
        with pytest.raises(ConfigError, match=f"^{name}: got"):
            ggml.OpParams(**{"n_dims": 8, "mode": 2, name: given})
    with pytest.raises(ConfigError, match=r"^mode: got"):
        ggml.OpParams(8, given)
    with pytest.raises(ConfigError, match=r"^sections\[2\]: got"):
        ggml.OpParams(8, 8, sections=(1, 1, given, 1))
    with pytest.raises(ConfigError, match=r"^b\[1\]: got"):
        ggml.rope_ext(A, [0, given, 2, 3, 4], None, 8, 2, **PLAIN)
    with pytest.raises(ShapeError, match=r"^ne\[1\]: got"):
        ggml.Tensor(A, 0, [8, given])
    with pytest.raises(ShapeError, match=r"^nb\[1\]: got"):
        ggml.Tensor(A, 0, [8, 2], [4, given])
    with pytest.raises(ShapeError, match=r"^view_offs: got"):
        ggml.Tensor(A, 0, [8, 2], None, given)
    with pytest.raises(ShapeError, match=r"^type: got"):
        ggml.Tensor(A, given, [8, 2])
    with pytest.raises(clrope.RopeError, match=r"^op_params(\[3\])?: got"):
        ggml.OpParams.decode([0, 8, 2, given, *[0] * 12])
    with pytest.raises(clrope.RopeError, match=r"^(row_indices: |row_indices: got)"):
        ggml.rope_set_rows(np.zeros((1, 16), np.float32), A, B, None, [given] * 5, 8, 2, **PLAIN)


@pytest.mark.parametrize("name", ["freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow"])
@pytest.mark.parametrize("given", [n for n in NUMBERS if n not in ("float", "whole float")])
def test_what_is_no_real_number_is_refused(name: str, given: str) -> None:
    for sign in (1, -1) if given == "huge" else (1,):
        floats = {**PLAIN, name: NUMBERS[given] if sign == 1 else -NUMBERS[given]}
        with pytest.raises(ConfigError, match=f"^{name}.*: got"):
            ggml.rope_ext(A, B, None, 8, 2, **floats)
    with pytest.raises(ConfigError, match=r"^c\[1\]: got"):
        ggml.rope_ext(A, B, [1.0, NUMBERS[given], 1.0, 1.0], 8, 2, **PLAIN)
    with pytest.raises(ConfigError, match=r"^c\[1\]: got"):
        ggml.OpParams(8, 2).config([1.0, NUMBERS[given], 1.0, 1.0])


def test_ragged_lists_and_lengths_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^c\[0\]: got \[1.0\] of type list"):
        ggml.rope_ext(A, B, [[1.0], [1.0, 2.0]], 8, 2, **PLAIN)
    with pytest.raises(ShapeError, match=r"^op_params: got list that is no array"):
        ggml.OpParams.decode([[1], [1, 2]])
    with pytest.raises(ShapeError, match=r"^row_indices: list cannot be read"):
        ggml.rope_set_rows(np.zeros((9, 16), np.float32), A, B, None, [[1], [1, 2]], 8, 2, **PLAIN)
    for ne in ([2**63], [2**62, 0], [2**40, 2**40]):
        with pytest.raises(ShapeError, match=r"^ne(\[0\])?: got"):
            ggml.Tensor(A, 0, ne, [0] * len(ne))
    with pytest.raises(ShapeError, match=r"^dst: got a masked array"):
        ggml.rope_set_rows(np.ma.masked_array(np.zeros((9, 16), np.float32)), A, B, None, B, 8, 2, **PLAIN)
    with pytest.raises(ShapeError, match=r"^a: Odd cannot be read"):
        ggml.rope_ext(type("Odd", (), {"shape": 3})(), B, None, 8, 2, **PLAIN)
    with pytest.raises(ConfigError, match=r"^config: got NoneType"):
        ggml.OpParams.of_config(None)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    tensor = ggml.Tensor(A, np.int64(0), np.array([8, 2]), (4, np.int32(32)), np.uint8(4))
    assert (tensor.type, tensor.ne, tensor.nb, tensor.view_offs) == ("f32", [8, 2], [4, 32], 4)
    assert {type(n) for n in (*tensor.ne, *tensor.nb, tensor.view_offs)} == {int}
    params = ggml.OpParams(np.int32(8), np.int64(8), freq_base=np.float32(500), sections=np.array([1, 1, 1, 1]))  # type: ignore[arg-type]
    assert params == ggml.OpParams(8, 8, freq_base=500, sections=(1, 1, 1, 1))


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
