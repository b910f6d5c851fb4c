"""Which variants support which problem, and what they become where they do not."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from pathlib import Path

import numpy as np
import pytest

from clrope import ConfigError, RopeConfig
from clrope.device import DeviceInfo
from clrope.kernels import rows, strided
from clrope.kernels.kernel import Parameter
from clrope.kernels.problem import AngleForm, Pairing, PairLayout, Problem
from clrope.kernels.source import kernel_source
from clrope.kernels.variant import KERNELS, STRIDED, Variant, candidates, parameter_table
from clrope.layout import DTYPES, Shape4, TensorView
from clrope.select.defaults import safe_variant

EXACT, FULL = AngleForm(exact=True), AngleForm(full_tables=True)
FAST = Variant(width=8, access="clang", store="nontemporal")


#: Reasons by words of their text.
REASONS = {
    "different places": "PAIRING", "last axis": "LAST_AXIS", "exact ones": "TABLES", "NaNs": "NANS",
    "private memory": "TOO_MANY_PAIRS", "do not fill": "FEW_PAIRS", "aligned to": "ALIGNMENT", "less than": "SHORT",
    "rounds of loops": "ROUNDS", "whole number of vectors": "PARTS",
    "some twice": "LEFT", "no whole lines": "LINES",
}  # fmt: skip


def reasons(variant: Variant, problem: Problem) -> str:
    """The name of the reason; '' if it is supported."""
    found = variant.unsupported(problem)
    return "" if found is None else next(name for words, name in REASONS.items() if words in found)


def place(
    dtype: str = "f32",
    mode: Pairing = "neox",
    head_dim: int = 128,
    n_dims: int = 128,
    n_offs: int = 0,
    **changes: object,
) -> Problem:
    view = TensorView.dense((1, 4, 2, head_dim), dtype)
    pairs = PairLayout.of_config(RopeConfig(mode, n_dims, n_offs=n_offs), head_dim)
    made = Problem(view.shape, dtype, view.strides, view.strides, pairs, angles=EXACT)
    return replace(made, **changes)  # type: ignore[arg-type]


def moved(at: Problem, elements: int) -> Problem:
    return replace(at, y_alignment=gcd(64, elements * at.itemsize))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_a_dense_tensor_takes_it_as_it_is(dtype: str, mode: Pairing) -> None:
    assert FAST.fit(place(dtype, mode)) == FAST


def test_nontemporal_needs_every_vector_aligned() -> None:
    plain = FAST.changed(store="plain")
    for at in (
        moved(place(), 1),
        place(y_alignment=4),
        place(head_dim=160, n_dims=136, mode="normal", y_alignment=8),
    ):
        assert reasons(FAST, at) == "ALIGNMENT", at
        assert FAST.fit(at) == plain
    # 16 of the 32 bytes: vectors as short as that.
    for at in (moved(place(), 4), place(y_alignment=16), place(head_dim=132), place(head_dim=160, n_offs=4)):
        assert reasons(FAST, at) == "ALIGNMENT", at
        assert FAST.fit(at) == FAST.changed(width=4)
    for at in (
        moved(place(), 8),
        place(y_alignment=32),
        place(x_alignment=4),  # loads need not be aligned
        place(head_dim=160, n_offs=8),
        place(head_dim=132, shape=(1, 1, 1, 132), y_strides=(1, 1, 1, 1)),  # axes of length 1 have no steps
    ):
        assert not reasons(FAST, at), reasons(FAST, at)


def test_nontemporal_needs_vectors_that_processors_store_so() -> None:
    short = FAST.changed(width=2)
    assert reasons(short, place()) == "SHORT"
    assert short.fit(place()) == short.changed(store="plain")
    # Two of 8 or 16 bits are stored as one, but only by clang's vectors, or where two bfloat16 are in a lane.
    for dtype, access, size in (
        ("f64", "builtin", 16), ("f16", "clang", 8), ("f16", "builtin", 4), ("bf16", "builtin", 8),
        ("f8e4m3", "clang", 4),
    ):  # fmt: skip
        variant = Variant(width=2, access=access, store="nontemporal")
        assert rows.store_bytes(place(dtype), variant.parameters) == size, (dtype, access)
        assert reasons(variant, place(dtype)) == ("" if size == 16 else "SHORT"), (dtype, access)
    odd = moved(place("bf16"), 1)
    assert rows.store_bytes(odd, Variant(width=8).parameters) == 16
    assert rows.store_bytes(place("bf16"), Variant(width=8).parameters) == 32


def test_the_rest_must_be_aligned_too_unless_it_is_not_copied() -> None:
    narrow = FAST.changed(width=4)
    # Pairs of neighbours end at element 22, where the copying of the rest begins.
    at = place(mode="normal", head_dim=80, n_dims=22)
    assert reasons(narrow, at) == "ALIGNMENT"
    assert reasons(narrow, replace(at, in_place=True)) == "LEFT"
    assert not reasons(narrow, place(mode="normal", head_dim=80, n_dims=32))
    assert reasons(narrow, place(mode="normal", head_dim=80, n_dims=32, y_alignment=8)) == "ALIGNMENT"
    at = place(mode="normal", head_dim=78, n_dims=32)
    assert reasons(narrow, at) == "ALIGNMENT"
    assert not reasons(narrow, replace(at, in_place=True, shape=(1, 1, 1, 78), y_strides=(1, 1, 1, 1)))


def test_pairs_that_are_left_over_need_no_shorter_vectors() -> None:
    plain = FAST.changed(store="plain")
    for n_dims in (32, 36, 116, 120, 126):
        assert plain.fit(place(n_dims=n_dims)) == plain
    # No line is streamed in parts: by a round that stores some pairs twice, or by short vectors.
    assert FAST.fit(place(n_dims=96)) == FAST
    for n_dims, reason in ((112, "LEFT"), (120, "ALIGNMENT"), (116, "ALIGNMENT")):
        at = place(n_dims=n_dims)
        assert reasons(FAST, at) == reason, n_dims
        assert FAST.fit(at) == plain, n_dims
    assert reasons(FAST.changed(width=4), place(n_dims=112)) == "LINES"
    assert not reasons(FAST.changed(width=4), place(n_dims=96))


def test_full_tables_and_long_heads() -> None:
    for mode in ("normal", "neox"):
        assert FAST.fit(place(mode=mode, angles=FULL)) == FAST
    assert FAST.fit(place(head_dim=4096, n_dims=2048)) == FAST
    longer = place(head_dim=4096, n_dims=2050)
    assert reasons(FAST, longer) == "TOO_MANY_PAIRS"
    assert FAST.fit(longer) == STRIDED


def test_two_bfloat16_in_a_lane_need_even_places() -> None:
    def packed(at: Problem) -> bool:
        options = rows.options(at, FAST.parameters)
        assert ("-DPACKED=1" in options) != ("-DPACKED=0" in options)
        return "-DPACKED=1" in options

    for at in (
        moved(place("bf16"), 1),
        place("bf16", x_alignment=2),
        place("bf16", n_dims=2 * 63),  # the second half at an odd element
        place("bf16", head_dim=129),
        place("f16"),
    ):
        assert not packed(at), at
    assert packed(place("bf16"))
    assert packed(moved(place("bf16"), 2))
    assert packed(place("bf16", "normal", n_dims=2 * 63))


def test_widths_that_few_pairs_do_not_fill() -> None:
    # Two vectors of first elements and two of second ones are a round of neox pairs, two vectors one of neighbours.
    wide = Variant(width=16)
    for dtype in ("f32", "bf16"):
        for mode, n_dims, width in (
            ("neox", 64, 16), ("neox", 62, 8), ("neox", 32, 8), ("neox", 30, 4), ("neox", 10, 2), ("neox", 8, 2),
            ("normal", 32, 16), ("normal", 30, 8), ("normal", 16, 8), ("normal", 14, 4), ("normal", 4, 2),
        ):  # fmt: skip
            at = place(dtype, mode, n_dims=n_dims)
            assert wide.fit(at) == Variant(width=width), (dtype, mode, n_dims)
            assert reasons(Variant(width=16), at) == ("" if width == 16 else "FEW_PAIRS")
        assert wide.fit(place(dtype, "neox", n_dims=6)) == STRIDED
        assert wide.fit(place(dtype, "normal", n_dims=2)) == STRIDED
    # Vectors as short as that have no non-temporal stores.
    assert FAST.fit(place(n_dims=8)) == FAST.changed(width=2, store="plain")


def test_what_is_tried_in_its_place() -> None:
    def tried(**parameters: object) -> list[dict[str, object]]:
        return [dict(p) for p in rows.KERNEL.order({**FAST.parameters, **parameters})]

    assert [(p["store"], p["width"]) for p in tried()] == [
        ("nontemporal", 8), ("nontemporal", 4), ("nontemporal", 2), ("plain", 8), ("plain", 4), ("plain", 2)
    ]  # fmt: skip
    every = tried(angles="fused", nan="plain", prefetch=4096)
    assert every[0] == {**FAST.parameters, "angles": "fused", "nan": "plain", "prefetch": 4096}
    assert [(p["nan"], p["angles"]) for p in every[::6]] == [
        ("plain", "fused"), ("plain", "cached"), ("any", "fused"), ("any", "cached")
    ]  # fmt: skip
    assert len(every) == 24
    for p in every:
        assert every.count(p) == 1
        assert (p["prefetch"], p["access"]) == (4096, "clang")
    assert tried(width=2, store="plain") == [{**FAST.parameters, "width": 2, "store": "plain"}]
    assert list(strided.KERNEL.order({})) == [{}]


def test_what_only_the_strided_kernel_can_do() -> None:
    reverse: Shape4 = (1024, 256, 128, -1)
    assert reasons(FAST, place(x_strides=reverse)) == "LAST_AXIS"
    assert FAST.fit(place(x_strides=reverse)) == STRIDED
    assert FAST.fit(place(y_strides=reverse)) == STRIDED
    other = PairLayout(64, 0, 128, "normal", "neox")
    assert reasons(FAST, place(pairs=other)) == "PAIRING"
    assert FAST.fit(place(pairs=other)) == STRIDED
    assert not reasons(STRIDED, place(x_strides=reverse))


def test_angles_that_no_kernel_can_make_are_cached() -> None:
    fused = FAST.changed(angles="fused")
    assert not reasons(fused, place())
    assert fused.fit(place(angles=AngleForm())) == FAST
    assert reasons(fused, place(angles=FULL)) == "TABLES"
    assert fused.fit(place(angles=FULL)) == FAST
    assert fused.fit(moved(place(angles=FULL), 1)) == FAST.changed(store="plain")
    # Pairs that are left over are no obstacle but for non-temporal stores.
    assert fused.fit(place(n_dims=24, mode="normal")) == fused.changed(store="plain")


def test_tables_of_the_caller_may_hold_any_nan() -> None:
    plain, callers = FAST.changed(nan="plain"), AngleForm(callers=True)
    assert not reasons(plain, place("bf16"))
    assert reasons(plain, place("bf16", angles=callers)) == "NANS"
    assert plain.fit(place("bf16", angles=callers)) == FAST
    assert plain.fit(place("f16", angles=callers)) == plain


def test_a_message_has_its_numbers() -> None:
    text = FAST.unsupported(place(y_alignment=16))
    assert text == "nontemporal: vectors of 32 bytes, the output is aligned to 16"


def test_what_fit_returns_is_supported(rng: np.random.Generator) -> None:
    for _ in range(2000):
        dtype = str(rng.choice(list(DTYPES)))
        head_dim = int(rng.integers(2, 300))
        n_dims = 2 * int(rng.integers(1, head_dim // 2 + 1))
        n_offs = 2 * int(rng.integers(0, (head_dim - n_dims) // 2 + 1))
        mode: Pairing = "normal" if rng.random() < 0.5 else "neox"
        at = moved(place(dtype, mode, head_dim, n_dims, n_offs), int(rng.integers(0, 70)))
        full = bool(rng.random() < 0.3)
        at = replace(at, in_place=bool(rng.random() < 0.5), angles=FULL if full else EXACT)
        options = candidates("cpu", dtype)
        variant = options[int(rng.integers(len(options)))]
        fitted = variant.fit(at)
        assert not reasons(fitted, at), f"{variant} at {at}: {fitted}: {fitted.unsupported(at)}"
        if not reasons(variant, at):
            assert fitted == variant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, "width: got 3, allowed are 2, 4, 8, 16"),
        ({"kernel": "cols"}, f"kernel: got 'cols', allowed are {', '.join(KERNELS)}"),
        ({"colour": 1}, "colour: not a parameter of kernel 'rows'"),
        ({"width": 1}, "width: got 1, allowed are 2, 4, 8, 16"),
        ({"width": 4.0}, "width: got 4.0"),
        ({"kernel": "strided", "width": 4}, "width: not a parameter of kernel 'strided', allowed are none"),
        ({"access": "native"}, "access: got 'native'"),
        ({"store": "both"}, "store: got 'both'"),
        ({"prefetch": -1}, "prefetch: got -1, allowed are 0, 64, 512"),
        ({"prefetch": True}, "prefetch: got True"),
    ],
)
def test_what_is_no_variant(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Variant(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "accelerator", "custom"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_candidates(kind: str, dtype: str, mode: Pairing) -> None:
    found = candidates(kind, dtype)
    assert found[0] == STRIDED
    assert len(set(found)) == len(found)
    texts = {}
    device = DeviceInfo("made up", kind=kind, compute_units=2, max_work_group_size=256)
    for variant in found:
        assert not reasons(variant, place(dtype, mode)), f"{variant}: {variant.unsupported(place(dtype, mode))}"
        assert Variant.from_dict(variant.to_dict()) == variant
        spec = variant.spec(place(dtype, mode), device)  # type: ignore[arg-type]
        assert spec.file == variant.implementation.file
        assert spec.function in kernel_source(spec.file)
        assert all(option.startswith("-D") for option in spec.options)
        # No two of one compiled text but for how the work is divided.
        assert texts.setdefault((spec.file, spec.options), variant.compiled) == variant.compiled
    safe = safe_variant(kind, dtype)
    assert safe in found, "the safe one must be tried, so that its failure is known"


def test_parameters_say_what_they_are() -> None:
    for kernel, name, values, text in parameter_table():
        assert kernel in KERNELS
        assert values
        assert len(text) > 10, name
    for kernel in KERNELS.values():
        assert kernel.summary.startswith(f"Kernel `{kernel.name}`: ")
        for parameter in kernel.parameters:
            assert Variant(kernel.name, **{parameter.name: parameter.default}) == Variant(kernel.name)
            for value in parameter.values:
                changed = Variant(kernel.name, **{parameter.name: value})
                assert getattr(changed, parameter.name) == value
                assert (changed.compiled == Variant(kernel.name)) == (
                    value == parameter.default or not parameter.compiled
                )


def test_another_kernel() -> None:
    with pytest.raises(AttributeError, match="has no 'width'"):
        STRIDED.width  # noqa: B018
    assert (STRIDED.angles, Variant(angles="fused").angles) == ("cached", "fused")


def test_how_work_is_divided_makes_no_other_program() -> None:
    slots = Parameter("slots", 0, "pairs of a work-item", (0, 7), compiled=False)
    unroll = Parameter("unroll", 1, "pairs that the compiler unrolls", (1, 2))
    mine = replace(strided.KERNEL, name="mine", parameters=(slots, unroll))
    assert Variant(mine, slots=7).compiled == Variant(mine)
    assert Variant(mine, slots=7, unroll=2).compiled == Variant(mine, unroll=2) != Variant(mine)


def test_another_folder(tmp_path: Path) -> None:
    for kernel in KERNELS.values():
        (tmp_path / kernel.file).write_text("// another text\n")
    device = DeviceInfo("made up", kind="cpu", compute_units=2, max_work_group_size=256)
    for variant in (FAST, STRIDED):
        own, other = variant, variant.changed(folder=tmp_path)
        assert own != other
        assert other.changed().folder == str(tmp_path)
        assert own.to_dict() == other.to_dict()
        specs = [v.spec(place(), device) for v in (own, other)]  # type: ignore[arg-type]
        assert specs[0].source is None
        assert specs[0].text == kernel_source(specs[0].file)
        assert specs[1].text == "// another text\n"
    assert FAST.changed(folder=tmp_path).fit(place(y_strides=(1, 1, 1, -1))) == STRIDED.changed(folder=tmp_path)
