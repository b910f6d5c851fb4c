"""`TensorView`: letters, ggml's ne and nb in both directions, spans and overlaps."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clrope import ShapeError, TensorView
from clrope.arrays import shares_memory
from clrope.layout import canonical, dtype_name, parse_layout


def test_a_c_order_array_is_ggmls_tensor() -> None:
    view = TensorView.of_array(np.zeros((2, 3, 4, 8), np.float16))
    assert view.to_ggml() == ([8, 4, 3, 2], [2, 16, 64, 192], 0)
    assert TensorView.from_ggml([8, 4, 3, 2], [2, 16, 64, 192], "f16") == view
    assert view == TensorView.dense((2, 3, 4, 8), "f16")
    assert (view.size, view.nbytes, view.itemsize, view.span, view.last_axis_dense) == (192, 384, 2, (0, 192), True)


def test_both_directions_for_any_view(rng: np.random.Generator) -> None:
    for _ in range(100):
        dtype = str(rng.choice(["f16", "bf16", "f32", "f64"]))
        view = TensorView(
            tuple(map(int, rng.integers(1, 9, 4))),
            tuple(map(int, rng.integers(-99, 99, 4))),
            int(rng.integers(0, 99)),
            dtype,
        )  # type: ignore[arg-type]
        ne, nb, offset = view.to_ggml()
        assert ne == list(view.shape[::-1])
        assert TensorView.from_ggml(ne, nb, dtype, offset) == view


def test_fewer_axes_of_ggml_are_filled() -> None:
    view = TensorView.from_ggml([8, 4, 3], [4, 40, 200], "f32", 12)
    assert (view.shape, view.strides, view.offset) == ((1, 3, 4, 8), (150, 50, 10, 1), 3)
    assert all(type(step) is int for step in (*view.strides, view.offset))
    view = TensorView.from_ggml([8, 4], [4, 40], "f32")
    assert (view.shape, view.strides) == ((1, 1, 4, 8), (40, 40, 10, 1))
    assert TensorView.from_ggml([8], [4], "f32") == TensorView.dense((1, 1, 1, 8), "f32")


def test_whether_heads_are_contiguous() -> None:
    for shape, strides, dense in (
        ((2, 3, 4, 8), (96, 32, 8, 1), True), ((2, 3, 4, 8), (192, 64, 16, 2), False),
        ((2, 3, 4, 1), (96, 32, 8, 5), True), ((2, 3, 1, 8), (96, 32, 8, 2), False),
        ((2, 3, 4, 8), (96, 32, 8, -1), False), ((2, 3, 4, 8), (96, 32, 8, 0), False),
    ):  # fmt: skip
        assert TensorView(shape, strides, 0, "f32").last_axis_dense is dense


def ranges(length: int) -> list[slice]:
    return [slice(first, last) for last in range(1, length + 1) for first in range(last)]


def test_which_part_is_the_whole() -> None:
    view = TensorView((3, 5, 2, 4), (100, 10, 5, 1), 7, "f32")
    assert view.part(slice(0, 3), slice(0, 5)) is view
    assert view.part(slice(None), slice(None)) is view
    some = [(b, s) for b in ranges(3) for s in ranges(5) if (b, s) != (slice(0, 3), slice(0, 5))]
    assert len(some) == 6 * 15 - 1
    for b, s in some:
        part = view.part(b, s)
        assert part.shape == (b.stop - b.start, s.stop - s.start, 2, 4)
        assert (part.strides, part.offset, part.dtype) == (view.strides, 7 + 100 * b.start + 10 * s.start, "f32")
    assert view.moved(0) is view
    assert view.moved(-3) == TensorView(view.shape, view.strides, 4, "f32")


def test_an_empty_tensor_touches_nothing() -> None:
    """However long its other axes are."""
    view = TensorView((0, 2**30, 2**30, 8), (8, 0, 0, 1), 5, "f32")
    assert (view.size, view.nbytes, view.span, view.overlaps_itself) == (0, 0, (5, 5), False)


@pytest.mark.parametrize("letters", ["bsnd", "bnsd", "sbnd", "dnsb", "ndsb"])
def test_letters(letters: str, rng: np.random.Generator) -> None:
    lengths = {"b": 2, "s": 3, "n": 4, "d": 6}
    x = rng.uniform(-1, 1, [lengths[c] for c in letters])
    view = TensorView.of_array(x, letters)
    assert view.shape == (2, 3, 4, 6)
    moved = canonical(x, letters)
    assert moved.shape == (2, 3, 4, 6)
    assert np.shares_memory(moved, x)
    assert view.strides == tuple(step // 8 for step in moved.strides)
    assert TensorView.dense(x.shape, "f64", letters) == view
    flat = x.ravel()
    b, s, n, d = (int(rng.integers(0, length)) for length in view.shape)
    assert (
        flat[view.offset + b * view.strides[0] + s * view.strides[1] + n * view.strides[2] + d * view.strides[3]]
        == (moved[b, s, n, d])
    )


def test_rank_3_has_no_b() -> None:
    x = np.zeros((3, 4, 6), np.float32)
    assert TensorView.of_array(x).shape == (1, 3, 4, 6)
    assert TensorView.of_array(x, "nsd").shape == (1, 4, 3, 6)
    assert TensorView.of_array(x, "nbsd").shape == (1, 4, 3, 6)
    assert TensorView.of_array(x).strides == (0, 24, 6, 1)
    assert TensorView.dense((3, 4, 6), "f32") == TensorView.of_array(x)
    assert TensorView.dense((3, 4, 6), "f32", "nsd") == TensorView.of_array(x, "nsd")
    for layout, shape in (("bsnd", (1, 3, 4, 6)), ("nsd", (1, 4, 3, 6)), ("dns", (1, 6, 4, 3))):
        assert canonical(x, layout).shape == shape
    assert parse_layout("BSND", 4) == "bsnd"
    assert [parse_layout(layout, len(layout)) for layout in ("bhsd", "bshd", "hsd")] == ["bnsd", "bsnd", "nsd"]


@pytest.mark.parametrize(
    ("layout", "rank", "message"),
    [
        ("bsnd", 2, r"x: got rank 2, allowed are 3 \[S, N, D\] and 4 \[B, S, N, D\]"),
        ("bsnd", 5, "x: got rank 5"),
        ("bshn", 4, r"layout: got 'bshn', allowed is any order of the letters b, s, n, d \(h for n\)"),
        ("bsn", 3, "layout: got 'bsn'"),
        ("bsndd", 4, "layout: got 'bsndd'"),
        (None, 4, "layout: got None"),
        (np.array(["bsnd", "bsnd"]), 4, "layout: got array"),
        ("snd", 4, "layout: got 'snd' for a rank 4 x, the letter b is missing"),
    ],
)
def test_refused_layouts(layout: Any, rank: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        parse_layout(layout, rank)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TensorView.from_ggml([8.5, 2], [4, 32], "f32"), "ne: got 8.5 of type float, an integer is needed"),
        (lambda: TensorView.from_ggml(["8", 2], [4, 32], "f32"), "ne: got '8' of type str"),
        (lambda: TensorView.from_ggml([True, 2], [4, 32], "f32"), "ne: got True of type bool"),
        (lambda: TensorView.from_ggml([8, -2], [4, 32], "f32"), "ne: got -2, at least 0 is needed"),
        (lambda: TensorView.from_ggml(8, [4], "f32"), "ne: got 8 of type int, a sequence of numbers is needed"),
        (lambda: TensorView.from_ggml({8, 2}, [4, 32], "f32"), "ne: got {8, 2} of type set, a sequence"),
        (lambda: TensorView.from_ggml([8, 2], {4: 0, 32: 0}, "f32"), "nb: got .* of type dict, a sequence"),
        (lambda: TensorView.from_ggml(b"\x08\x02", [4, 32], "f32"), "ne: got .* of type bytes, a sequence"),
        (lambda: TensorView.from_ggml([-(10**5000)], [4], "f32"), "ne: got an integer of 16610 bits, at least 0"),
        (lambda: TensorView.from_ggml([8], [10**5000 + 1], "f32"), "nb: got a list that cannot be printed at offset 0"),
        (lambda: TensorView.from_ggml([8], [4], ["f32"]), r"dtype: got \['f32'\], allowed are f16"),
        (lambda: TensorView.dense({1, 2, 3, 4}, "f32"), "shape: got {1, 2, 3, 4} of type set, a sequence"),
        (lambda: TensorView.from_ggml([8, 2], [4, 32.5], "f32"), "nb: got 32.5 of type float"),
        (lambda: TensorView.from_ggml([8, 2], [4, 32], "f32", -4), "view_offs: got -4, at least 0"),
        (lambda: TensorView.from_ggml([8, 2], [4, 32], "f32", 4.0), "view_offs: got 4.0 of type float"),
        (lambda: TensorView.from_ggml([8, 2], [4, 32], "f32", 2**63), "beyond 64-bit byte addresses"),
        (
            lambda: TensorView.from_ggml([8, 2], [4, 2**63], "f32"),
            "ne, nb: .* elements of f32 are beyond 64-bit byte addresses",
        ),
        (lambda: TensorView.from_ggml([2**40, 2**40], [1, 0], "f8e5m2"), "beyond 64-bit byte addresses"),
        (lambda: TensorView.dense((1, 2, 3, 2.5), "f32"), "shape: got 2.5 of type float"),
        (lambda: TensorView.dense((1, 2, -3, 4), "f32"), "shape: got -3, at least 0 is needed"),
        (
            lambda: TensorView.dense((2**31, 2**31, 1, 4), "f32"),
            "shape: .* elements of f32 are beyond 64-bit byte addresses",
        ),
        (lambda: TensorView.dense((1, 2, 3, 4), "f33"), "dtype: got 'f33', allowed are f16"),
        (lambda: TensorView.from_ggml([8], [4], "q4_0"), "dtype: got 'q4_0', allowed are f16, bf16, f32, f64"),
        (lambda: TensorView.from_ggml([8, 1], [4], "f32"), "ne, nb: got 2 and 1 numbers, allowed are 1 to 4"),
        (lambda: TensorView.from_ggml([8], [4, 32], "f32"), "ne, nb: got 1 and 2 numbers, allowed are 1 to 4"),
        (
            lambda: TensorView.from_ggml([8] + 4 * [1], 5 * [4], "f32"),
            "ne, nb: got 5 and 5 numbers, allowed are 1 to 4",
        ),
        (lambda: TensorView.from_ggml([], [], "f32"), "ne, nb: got 0 and 0 numbers"),
        (lambda: TensorView.from_ggml([8, 2], [4, 34], "f32"), r"nb: got \[4, 34\] at offset 0, multiples of .* 4"),
        (lambda: TensorView.from_ggml([8, 2], [4, 32], "f32", 2), "at offset 2, multiples"),
        (
            lambda: TensorView.of_array(np.zeros((1, 1, 2), np.int32)),
            "x: got dtype int32, allowed are float16, bfloat16",
        ),
        (lambda: TensorView.of_array(np.zeros((1, 1, 2), ">f4")), "x: got dtype >f4"),
        (lambda: TensorView.of_array(np.zeros((1, 1, 2), ">f4"), argument="q"), "q: got dtype >f4"),
        (lambda: dtype_name(np.int8), "x: got dtype int8"),
        (lambda: TensorView.of_array(np.zeros((3, 1, 2), "f4,f2")["f0"]), "x: byte strides .* no multiples"),
    ],
)
def test_refused_tensors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


def test_the_longest_axis() -> None:
    one = np.float32(1)
    assert TensorView.of_array(np.broadcast_to(one, (2**30, 1, 8))).shape == (1, 2**30, 1, 8)
    with pytest.raises(ShapeError, match=r"k: got shape \[1073741825, 1, 8\], an axis has at most 2\*\*30 elements"):
        TensorView.of_array(np.broadcast_to(one, (2**30 + 1, 1, 8)), argument="k")


@pytest.mark.parametrize(("dtype", "most"), [("f8e5m2", 2**63 - 1), ("f16", 2**62 - 1), ("f64", 2**60 - 1)])
def test_up_to_the_last_64_bit_address(dtype: str, most: int) -> None:
    assert TensorView.dense((1, 1, most), dtype).nbytes == most * TensorView.dense((1, 1, 1), dtype).itemsize
    with pytest.raises(ShapeError, match=f"shape: {most + 1} elements of {dtype} are beyond 64-bit byte addresses"):
        TensorView.dense((1, 1, most + 1), dtype)


def test_dtypes() -> None:
    names = [dtype_name(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
    assert names == ["f16", "bf16", "f32", "f64"]


def brute_elements(view: TensorView) -> list[int]:
    out = np.full((1,) * 4, view.offset)
    for axis, (n, step) in enumerate(zip(view.shape, view.strides, strict=True)):
        out = out + (np.arange(n) * step).reshape([-1 if a == axis else 1 for a in range(4)])
    return sorted(out.ravel().tolist())


def random_view(rng: np.random.Generator) -> TensorView:
    return TensorView(
        tuple(map(int, rng.integers(1, 5, 4))),
        tuple(map(int, rng.integers(-12, 12, 4))),
        int(rng.integers(0, 60)),
        "f32",
    )  # type: ignore[arg-type]


def test_spans_and_overlaps_against_counting(rng: np.random.Generator) -> None:
    seen = [0, 0]
    for _ in range(300):
        view, other = random_view(rng), random_view(rng)
        places = brute_elements(view)
        assert view.span == (places[0], places[-1] + 1)
        assert view.overlaps_itself == (len(set(places)) < len(places)), view
        shared = bool(set(places) & set(brute_elements(other)))
        assert shares_memory(view, other) == shared, (view, other)
        seen[shared] += 1
    assert min(seen) > 20


def test_empty_and_broadcast() -> None:
    empty = TensorView((0, 3, 2, 8), (48, 16, 8, 1), 5, "f32")
    assert (empty.span, empty.size, empty.overlaps_itself) == ((5, 5), 0, False)
    assert TensorView((2, 3, 2, 8), (0, 16, 8, 1), 0, "f32").overlaps_itself
    assert not TensorView((1, 3, 2, 8), (0, 16, 8, 1), 0, "f32").overlaps_itself


def test_overlap_of_what_is_spread_far(rng: np.random.Generator) -> None:
    """No table of the whole range is made."""
    far = 1 << 40
    assert not TensorView((1, 3, 2, 4), (0, far, far + 4, 1), 0, "f32").overlaps_itself
    assert TensorView((1, 3, 2, 4), (0, far, 2 * far, 1), 0, "f32").overlaps_itself


@pytest.mark.parametrize("step", [8, 1000])
def test_heads_that_mesh(step: int) -> None:
    """Elements 0, 2, 4 of one head and 3, 5, 7 of the next."""
    assert not TensorView((1, 200, 2, 3), (0, step, 3, 2), 0, "f32").overlaps_itself
    assert TensorView((1, 200, 2, 3), (0, step, 2, 2), 0, "f32").overlaps_itself


def test_a_dense_tensor_takes_no_table_of_its_elements() -> None:
    """It would be of 16 PiB here. The axes of one element (n, and b of stride 0) have no part in it."""
    view = TensorView.dense((2, 1, 2**50), "f16")
    assert (view.strides, view.overlaps_itself) == ((0, 2**50, 2**50, 1), False)


def test_parts() -> None:
    view = TensorView.dense((4, 6, 2, 8), "f32").moved(10)
    part = view.part(slice(1, 3), slice(2, 6))
    assert (part.shape, part.strides, part.offset) == ((2, 4, 2, 8), view.strides, 10 + 96 + 32)
