"""Which variants support which problem, and what they become where they do not."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clrope import ConfigError, RopeConfig
from clrope.kernels import rows, tiled
from clrope.kernels.problem import AngleForm, Pairing, PairLayout, Problem
from clrope.kernels.source import kernel_source
from clrope.kernels.variant import KERNELS, STRIDED, Variant, candidates, parameter_table, program_files
from clrope.layout import DTYPES, Shape4, TensorView
from clrope.select.defaults import safe_variant

EXACT, FULL = AngleForm(exact=True), AngleForm(full_tables=True)
FAST = Variant(width=8, access="clang", prepared=True, store="nontemporal")


def reasons(variant: Variant, problem: Problem) -> str:
    """The name of the reason; '' if it is supported."""
    found = variant.unsupported(problem)
    return "" if found is None else found.reason.name


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


def apart(at: Problem) -> Problem:
    """The same with room for two more heads behind each of the output."""
    b, s, n, _ = at.y_strides
    return replace(at, y_strides=(3 * b, 3 * s, 3 * n, 1))


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
        assert FAST.fit(at) == FAST.changed(store="staged")
        assert FAST.fit(apart(at)) == plain
    # 16 of the 32 bytes: vectors as short as that.
    for at in (moved(place(), 4), place(y_alignment=16), place(head_dim=132), place(head_dim=160, n_offs=4)):
        assert reasons(FAST, at) == "ALIGNMENT", at
        assert FAST.fit(at) == FAST.changed(store="staged")
        assert FAST.fit(apart(at)) == FAST.changed(width=4)
    for at in (
        moved(place(), 8),
        place(y_alignment=32),
        place(x_alignment=4),  # loads need not be aligned
        place(head_dim=160, n_offs=8),
        place(head_dim=132, shape=(1, 1, 1, 132), y_strides=(1, 1, 1, 1)),  # axes of length 1 have no steps
    ):
        assert not reasons(FAST, at), reasons(FAST, at)


def test_heads_gather_where_they_lie_behind_each_other() -> None:
    staged = FAST.changed(store="staged")
    for at in (place(), moved(place(), 1), place(head_dim=132), place(n_dims=64), place("f16", "normal", 80, 20)):
        assert not reasons(staged, at)
    assert not reasons(staged, place(in_place=True))
    for at in (apart(place()), place(n_dims=64, in_place=True), place("f64", head_dim=2048, n_dims=64)):
        assert reasons(staged, at), at
        assert staged.fit(at) == FAST, "they are aligned, so that each vector can be stored non-temporally"
    one = apart(place())
    one = replace(one, shape=(1, 4, 1, 128))
    assert not reasons(staged, one), "a single head has nothing behind it"
    # A decode step: each batch is one token with one head, all at the same position. They are launched as heads.
    batches = replace(apart(one), shape=(5, 1, 1, 128), row_stride=0)
    for gap in (0, 8, -256):
        strides = (128 + gap, 128, 128 + gap, 1)
        padded = replace(batches, x_strides=strides, y_strides=strides)
        assert bool(reasons(staged, padded)) is bool(gap)


def test_the_rest_must_be_aligned_too_unless_it_is_not_copied() -> None:
    # Four of 8 elements a round: pairs of neighbours end at element 20, where the copying of the rest begins.
    narrow = FAST.changed(width=4)
    at = place(mode="normal", head_dim=80, n_dims=20, y_alignment=8)
    assert reasons(narrow, at) == "ALIGNMENT"
    at = place(mode="normal", head_dim=78, n_dims=20)
    assert reasons(narrow, at) == "ALIGNMENT"
    assert not reasons(narrow, replace(at, in_place=True, shape=(1, 1, 1, 78), y_strides=(1, 1, 1, 1)))


def test_what_is_less_than_a_round_is_left_to_shorter_vectors() -> None:
    prepared = FAST.changed(store="plain")
    for n_dims in (16, 20, 116, 120, 126):
        assert not reasons(prepared, place(n_dims=n_dims))
    # The second half has to be aligned, too, for non-temporal stores.
    for n_dims, near in ((120, FAST.changed(width=4)), (116, prepared)):
        assert FAST.fit(place(n_dims=n_dims)) == FAST.changed(store="staged")
        assert FAST.fit(apart(place(n_dims=n_dims))) == near, n_dims


def test_prepared_gives_way() -> None:
    tables = place(angles=FULL)
    assert FAST.fit(tables) == FAST.changed(prepared=False)
    # Neighbours are loaded two at a time without it: half the width keeps the vectors as long as they were.
    assert FAST.fit(place(mode="normal", angles=FULL)) == FAST.changed(prepared=False, width=4)
    wide = FAST.changed(width=16)
    assert wide.fit(place(mode="normal", angles=FULL)) == FAST.changed(prepared=False, width=8)
    assert FAST.fit(place(head_dim=4096, n_dims=4096)) == FAST.changed(prepared=False)
    assert Variant(width=1, prepared=True).fit(place()) == Variant(width=1)


def test_two_bfloat16_in_a_lane_need_even_places() -> None:
    prepared = FAST.changed(store="plain")
    for at in (
        moved(place("bf16"), 1),
        place("bf16", x_alignment=2),
        place("bf16", n_dims=2 * 63),  # the second half at an odd element
        place("bf16", head_dim=129),
    ):
        assert not prepared.fit(at).prepared, at
    assert not reasons(prepared, moved(place("bf16"), 2))
    assert not reasons(prepared, moved(place("f16"), 1))


def test_widths_that_few_pairs_do_not_fill() -> None:
    assert Variant(width=8).fit(place(n_dims=10)) == Variant(width=4)
    assert Variant(width=8).fit(place(n_dims=2)) == Variant(width=1)
    # A prepared vector of neighbours holds half as many pairs.
    assert Variant(width=16, prepared=True).fit(place(mode="normal", n_dims=16)).width == 16
    assert Variant(width=16, prepared=True).fit(place(mode="normal", n_dims=14)).width == 8
    assert Variant(width=16, prepared=True).fit(place("bf16", mode="normal", n_dims=32)).width == 16
    assert Variant(width=16, prepared=True).fit(place("bf16", mode="normal", n_dims=30)).width == 8
    # Non-temporal stores write whole lines, two bfloat16 in a lane; else too few pairs for that are done one by one.
    assert Variant(width=8, prepared=True).fit(place("bf16", n_dims=16)).width == 8
    assert FAST.fit(apart(place("bf16", n_dims=16))).width == 4


def test_what_only_the_strided_kernel_can_do() -> None:
    reverse: Shape4 = (1024, 256, 128, -1)
    assert FAST.fit(place(x_strides=reverse)) == STRIDED
    assert FAST.fit(place(y_strides=reverse)) == STRIDED
    other = PairLayout(64, 0, 128, 2, 1, 1, 64)
    assert FAST.fit(place(pairs=other)) == STRIDED
    assert Variant("tiled").fit(place(pairs=other)) == STRIDED
    assert not reasons(STRIDED, place(x_strides=reverse))


def test_angles_that_no_kernel_can_make_are_cached() -> None:
    fused = FAST.changed(angles="fused")
    assert not reasons(fused, place())
    assert fused.fit(place(angles=AngleForm())) == FAST
    assert fused.fit(place(angles=FULL)) == FAST.changed(prepared=False)
    # Vectors of 8 of 12 pairs of neighbours, two elements each, are whole rounds for the rotation, not for the angles.
    assert fused.fit(place(n_dims=24, mode="normal")) == FAST


def test_tables_of_the_caller_may_hold_any_nan() -> None:
    plain, callers = FAST.changed(nan="plain"), AngleForm(callers=True)
    assert not reasons(plain, place("bf16"))
    assert reasons(plain, place("bf16", angles=callers)) == "NANS"
    assert plain.fit(place("bf16", angles=callers)) == FAST
    assert plain.fit(place("f16", angles=callers)) == plain


def test_tiles_need_room(rng: np.random.Generator) -> None:
    some = Variant("tiled", width=8)
    assert not reasons(some, place())
    assert not reasons(some, place(angles=FULL))
    assert reasons(some, place(head_dim=4096, n_dims=64)) == "TILE"
    assert some.fit(place(head_dim=4096, n_dims=64)) == Variant(width=8)


def test_a_message_has_its_numbers() -> None:
    unsupported = FAST.unsupported(place(y_alignment=16))
    assert unsupported is not None
    assert unsupported.reason is rows.RowsReason.ALIGNMENT
    assert unsupported.numbers == {"size": 32, "alignment": 16}
    assert str(unsupported) == "nontemporal: vectors of 32 bytes, the output is aligned to 16"
    for reason in (*rows.RowsReason, *tiled.TiledReason):
        assert reason.value


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
        options = candidates("cpu", dtype, mode)
        variant = options[int(rng.integers(len(options)))]
        fitted = variant.fit(at)
        assert not reasons(fitted, at), f"{variant} at {at}: {fitted}: {fitted.unsupported(at)}"
        if not reasons(variant, at):
            assert fitted == variant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, "width: got 3, allowed are 1, 2, 4, 8, 16"),
        ({"kernel": "cols"}, "kernel: got 'cols', allowed are strided, rows, tiled"),
        ({"colour": 1}, "colour: not a parameter of kernel 'rows'"),
        ({"prepared": 1}, "prepared: got 1, allowed are False, True"),
        ({"kernel": "strided", "width": 4}, "width: not a parameter of kernel 'strided', allowed are none"),
        ({"access": "native"}, "access: got 'native'"),
        ({"store": "both"}, "store: got 'both'"),
        ({"heads_per_item": -1}, "heads_per_item: got -1"),
    ],
)
def test_what_is_no_variant(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Variant(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "accelerator", "custom"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_candidates(kind: str, dtype: str, mode: Pairing) -> None:
    found = candidates(kind, dtype, mode)
    assert found[0] == STRIDED
    assert len(set(found)) == len(found)
    texts = {}
    device: object = SimpleNamespace(kind=kind, compute_units=2)
    for variant in found:
        assert not reasons(variant, place(dtype, mode)), f"{variant}: {variant.unsupported(place(dtype, mode))}"
        assert Variant.from_dict(variant.to_dict()) == variant
        spec = variant.spec(place(dtype, mode), device)  # type: ignore[arg-type]
        assert spec.file in list(program_files(mode))
        assert spec.function in kernel_source(spec.file)
        assert all(option.startswith("-D") for option in spec.options)
        # No two of one compiled text but for how the work is divided.
        text = (spec.file, spec.options, variant.parameters.get("heads_per_item"))
        assert texts.setdefault(text, variant) == variant
    safe = safe_variant(kind, dtype, mode)
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
            for value in parameter.values or (0, 7):
                changed = Variant(kernel.name, **{parameter.name: value})
                assert getattr(changed, parameter.name) == value
                assert (changed.compiled == Variant(kernel.name)) == (
                    value == parameter.default or not parameter.compiled
                )


def test_another_kernel() -> None:
    assert Variant("tiled", width=8).of_kernel("rows", "width") == Variant(width=8)
    with pytest.raises(AttributeError, match="has no 'width'"):
        STRIDED.width  # noqa: B018
    assert (STRIDED.angles, Variant(prepared=True, angles="fused").angles) == ("cached", "fused")


def test_another_folder(tmp_path: Path) -> None:
    for file in ("rotate_neox.cl", "rotate_strided.cl"):
        (tmp_path / file).write_text("// another text\n")
    device: object = SimpleNamespace(kind="cpu", compute_units=2)
    for variant in (FAST, Variant("tiled"), STRIDED):
        own, other = variant, variant.from_folder(tmp_path)
        assert own != other
        assert other.changed().folder == str(tmp_path)
        assert own.to_dict() == other.to_dict()
        specs = [v.spec(place(), device) for v in (own, other)]  # type: ignore[arg-type]
        assert specs[0].source is None
        assert specs[0].text == kernel_source(specs[0].file)
        assert specs[1].text == "// another text\n"
    assert FAST.from_folder(tmp_path).fit(place(y_strides=(1, 1, 1, -1))) == STRIDED.from_folder(tmp_path)
