"""Which spellings fit where, and what they become where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrope import ConfigError, RopeConfig
from clrope.layout import DTYPES, TensorView
from clrope.program.candidates import candidates
from clrope.program.defaults import default_for
from clrope.program.outcome import SIZES, Purpose
from clrope.program.source import kernel_source
from clrope.program.variants import PREFETCH, PREFETCH_NTA, STRIDED, Pairing, Placement, Variant, default_variant
from clrope.schedule.geometry import Geometry

FAST = Variant(width=8, access="clang", prepared=True, store="nontemporal")


def place(
    dtype: str = "f32",
    mode: Pairing = "neox",
    head_dim: int = 128,
    n_dims: int = 128,
    n_offs: int = 0,
    **changes: object,
) -> Placement:
    view = TensorView.dense((1, 4, 2, head_dim), dtype)
    config = RopeConfig(mode, n_dims, n_offs=n_offs)
    made = Placement(view, view, Geometry.of_config(config, head_dim), phases=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def moved(at: Placement, elements: int) -> Placement:
    return replace(at, y=at.y.moved(elements))


def apart(at: Placement) -> Placement:
    """The same with room for two more heads behind each of the output."""
    return replace(at, y=replace(at.y, strides=(*(3 * step for step in at.y.strides[:3]), 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_a_dense_tensor_takes_it_as_it_is(dtype: str, mode: Pairing) -> None:
    assert FAST.fitted(place(dtype, mode)) == FAST


def test_nontemporal_needs_every_vector_aligned() -> None:
    plain = replace(FAST, store="plain")
    for at in (
        moved(place(), 1),
        place(y_alignment=lambda: 4),
        place(head_dim=160, n_dims=136, mode="normal", y=TensorView.dense((1, 4, 2, 160), "f32").moved(2)),
    ):
        assert FAST.misfit(at).startswith("store:"), at
        assert FAST.fitted(at) == replace(FAST, store="staged")
        assert FAST.fitted(apart(at)) == plain
    # 16 of the 32 bytes: vectors as short as that.
    for at in (moved(place(), 4), place(y_alignment=16), place(head_dim=132), place(head_dim=160, n_offs=4)):
        assert FAST.misfit(at).startswith("store:"), at
        assert FAST.fitted(at) == replace(FAST, store="staged")
        assert FAST.fitted(apart(at)) == replace(FAST, width=4)
    for at in (
        moved(place(), 8),
        place(y_alignment=lambda: 32),
        place(x_alignment=4),  # loads need not be aligned
        place(head_dim=160, n_offs=8),
        place(head_dim=132, y=TensorView((1, 1, 1, 132), (1, 1, 1, 1), 0, "f32")),  # axes of length 1 have no steps
    ):
        assert FAST.fits(at), FAST.misfit(at)


def test_heads_gather_where_they_lie_behind_each_other() -> None:
    staged = replace(FAST, store="staged")
    for at in (place(), moved(place(), 1), place(head_dim=132), place(n_dims=64), place("f16", "normal", 80, 20)):
        assert staged.fits(at)
    assert staged.fits(place(in_place=True))
    for at in (apart(place()), place(n_dims=64, in_place=True), place("f64", head_dim=2048, n_dims=64)):
        assert staged.misfit(at).startswith("store:"), at
        assert staged.fitted(at) == FAST, "they are aligned, so that each vector can go past the cache"
    one = apart(place())
    one = replace(one, y=replace(one.y, shape=(1, 4, 1, 128)), x=replace(one.x, shape=(1, 4, 1, 128)))
    assert staged.fits(one), "a single head has nothing behind it"


def test_the_rest_must_be_aligned_too_unless_it_is_not_copied() -> None:
    # Four of 8 elements a round: pairs of neighbours end at element 20, where the copying of the rest begins.
    narrow = replace(FAST, width=4)
    at = place(mode="normal", head_dim=80, n_dims=20, y=TensorView.dense((1, 4, 2, 80), "f32").moved(2))
    assert narrow.misfit(at).startswith("store:")
    at = place(mode="normal", head_dim=78, n_dims=20)
    assert narrow.misfit(at).startswith("store:")
    assert narrow.fits(replace(at, in_place=True, y=TensorView((1, 1, 1, 78), (1, 1, 1, 1), 0, "f32")))


def test_what_is_less_than_a_round_is_left_to_shorter_vectors() -> None:
    prepared = replace(FAST, store="plain")
    for n_dims in (16, 20, 116, 120, 126):
        assert prepared.fits(place(n_dims=n_dims))
    # The second half has to be aligned, too, for stores past the cache.
    for n_dims, near in ((120, replace(FAST, width=4)), (116, prepared)):
        assert FAST.fitted(place(n_dims=n_dims)) == replace(FAST, store="staged")
        assert FAST.fitted(apart(place(n_dims=n_dims))) == near, n_dims


def test_alignment_is_only_asked_for_if_it_matters() -> None:
    def fail() -> int:
        raise AssertionError("asked")

    at = place(x_alignment=fail, y_alignment=fail)
    assert Variant().fits(at)
    assert replace(FAST, store="plain").fits(at)
    with pytest.raises(AssertionError, match="asked"):
        FAST.fits(at)


def test_prepared_gives_way() -> None:
    tables = place(full_tables=True)
    assert FAST.fitted(tables) == replace(FAST, prepared=False)
    # Neighbours are loaded two at a time without it: half the width keeps the vectors as long as they were.
    assert FAST.fitted(place(mode="normal", full_tables=True)) == replace(FAST, prepared=False, width=4)
    wide = replace(FAST, width=16)
    assert wide.fitted(place(mode="normal", full_tables=True)) == replace(FAST, prepared=False, width=8)
    assert FAST.fitted(place(head_dim=4096, n_dims=4096)) == replace(FAST, prepared=False)
    assert Variant(width=1, prepared=True).fitted(place()) == Variant(width=1)


def test_two_bfloat16_in_a_lane_need_even_places() -> None:
    prepared = replace(FAST, store="plain")
    for at in (
        moved(place("bf16"), 1),
        place("bf16", x=TensorView.dense((1, 4, 2, 128), "bf16").moved(3)),
        place("bf16", x_alignment=2),
        place("bf16", n_dims=2 * 63),  # the second half at an odd element
        place("bf16", head_dim=129),
    ):
        assert not prepared.fitted(at).prepared, at
    assert prepared.fits(moved(place("bf16"), 2))
    assert prepared.fits(moved(place("f16"), 1))


def test_widths_that_few_pairs_do_not_fill() -> None:
    assert Variant(width=8).fitted(place(n_dims=10)) == Variant(width=4)
    assert Variant(width=8).fitted(place(n_dims=2)) == Variant(width=1)
    # A prepared vector of neighbours holds half as many pairs.
    assert Variant(width=16, prepared=True).fitted(place(mode="normal", n_dims=16)).width == 16
    assert Variant(width=16, prepared=True).fitted(place(mode="normal", n_dims=14)).width == 8
    assert Variant(width=16, prepared=True).fitted(place("bf16", mode="normal", n_dims=32)).width == 16
    assert Variant(width=16, prepared=True).fitted(place("bf16", mode="normal", n_dims=30)).width == 8
    # Past the cache lines are written whole, two bfloat16 in a lane; else too few pairs for that are done one by one.
    assert Variant(width=8, prepared=True).fitted(place("bf16", n_dims=16)).width == 8
    assert FAST.fitted(apart(place("bf16", n_dims=16))).width == 4


def test_what_only_the_strided_kernel_can_do() -> None:
    reverse = TensorView((1, 4, 2, 128), (1024, 256, 128, -1), 127, "f32")
    assert FAST.fitted(place(x=reverse)) == STRIDED
    assert FAST.fitted(place(y=reverse)) == STRIDED
    other = Geometry(64, 0, 128, 2, 1, 1, 64)
    assert FAST.fitted(place(geometry=other)) == STRIDED
    assert STRIDED.fits(place(x=reverse))


def test_angles_that_no_kernel_can_make_are_cached() -> None:
    fused = replace(FAST, angles="fused")
    assert fused.fits(place())
    assert fused.fitted(place(phases=False)) == FAST
    assert fused.fitted(place(full_tables=True, phases=False)) == replace(FAST, prepared=False)
    # Vectors of 8 of 12 pairs of neighbours, two elements each, are whole rounds for the rotation, not for the angles.
    assert fused.fitted(place(n_dims=24, mode="normal")) == FAST


def test_tiles_need_room_and_nothing_else() -> None:
    tiled = Variant("tiled", width=8)
    assert tiled.fits(place())
    assert tiled.fits(place(full_tables=True))
    assert tiled.fitted(place(head_dim=4096, n_dims=64)) == Variant(width=8)
    assert replace(tiled, prefetch=64).fitted(place()) == Variant(width=8, prefetch=64)


def test_what_is_fitted_fits(rng: np.random.Generator) -> None:
    for _ in range(2000):
        dtype = str(rng.choice(list(DTYPES)))
        head_dim = int(rng.integers(2, 300))
        n_dims = 2 * int(rng.integers(1, head_dim // 2 + 1))
        n_offs = 2 * int(rng.integers(0, (head_dim - n_dims) // 2 + 1))
        mode: Pairing = "normal" if rng.random() < 0.5 else "neox"
        at = moved(place(dtype, mode, head_dim, n_dims, n_offs), int(rng.integers(0, 70)))
        at = replace(at, in_place=bool(rng.random() < 0.5), full_tables=bool(rng.random() < 0.3))
        options = candidates("cpu", dtype, mode)
        variant = options[int(rng.integers(len(options)))]
        fitted = variant.fitted(at)
        assert fitted.fits(at), f"{variant} at {at}: {fitted}: {fitted.misfit(at)}"
        if variant.fits(at):
            assert fitted == variant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, "width: got 3, allowed are 1, 2, 4, 8, 16"),
        ({"kernel": "cols"}, "kernel: got 'cols', allowed are rows, tiled, strided"),
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
    for variant in found:
        assert variant.fits(place(dtype, mode)), f"{variant}: {variant.misfit(place(dtype, mode))}"
        assert Variant.from_dict(variant.to_dict()) == variant
        file, kernel = variant.source(mode)
        assert kernel in kernel_source(file)
        # No two of one compiled text but for how the work is divided.
        text = (file, variant.options(dtype, place(dtype, mode).geometry), variant.heads_per_item)
        assert texts.setdefault(text, variant) == variant
    safe = default_variant(kind, dtype, mode)
    assert safe in found, "the safe one must be tried, so that its failure is known"


@pytest.mark.parametrize("name", ["AMD EPYC", "pthread-AMD EPYC 9B45 128-Core", "Intel(R) Xeon(R) Processor", "cpu"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults(dtype: str, mode: Pairing, in_place: bool, size: str, name: str, cpu: object) -> None:
    purpose = Purpose(dtype, mode, in_place, size)  # type: ignore[arg-type]
    for platform, driver, tried in (
        ("Portable Computing Language", "3.0-rc2", True),
        ("Portable Computing Language", "3.1+debian", True),
        ("Portable Computing Language", "99.1", False),
        ("Intel(R) OpenCL", "2026.22.10.0.01_160000", True),
        ("Something New", "3.0", False),
    ):
        for kind in ("cpu", "gpu", "accelerator", "custom"):
            target = replace(cpu, platform=platform, driver_version=driver, kind=kind, name=name)  # type: ignore[type-var]
            variant = default_for(target, purpose)  # type: ignore[arg-type]
            if kind != "cpu" or not tried:
                assert variant == default_variant(kind, dtype, mode)
            else:
                assert variant in candidates(kind, dtype, mode)
                assert (variant.access, variant.prepared) == ("clang", True)
                amd = "AMD" in name
                # Only where it was measured to be quicker.
                made = (dtype, mode, in_place, variant.width) == ("f16", "normal", True, 16)
                if amd and platform.startswith("Portable"):
                    made = dtype in (
                        ("f32",) if in_place else ("f32", "bf16") if mode == "normal" else ("f32", "f16", "bf16")
                    )
                elif amd:
                    made = (dtype, mode, in_place) == ("f32", "normal", False)
                assert variant.angles == ("fused" if made and size == "large" else "cached")
                # What lies in a cache is not fetched ahead and not written past it; AMD's share theirs among few cores.
                near = size == "small" or (size == "medium" and amd)
                assert (variant.prefetch, variant.store) == (
                    0 if near else PREFETCH_NTA if amd else PREFETCH,
                    "plain" if near or in_place else "nontemporal",
                )
                assert variant.prefetch_kind == ("nta" if amd and not near else "levels")


@pytest.mark.parametrize(("lanes", "angles"), [(8, "cached"), (16, "fused")])
def test_the_default_makes_angles_only_by_vectors_of_16(cpu: object, lanes: int, angles: str) -> None:
    widths = cpu.native_widths._replace(float=lanes)  # type: ignore[attr-defined]
    target = replace(  # type: ignore[type-var]
        cpu, platform="Intel(R) OpenCL", kind="cpu", native_widths=widths, name="Intel(R) Xeon(R) Processor"
    )
    variant = default_for(target, Purpose("f16", "normal", True, "large"))  # type: ignore[arg-type]
    assert (variant.width, variant.angles, bool(variant.prefetch)) == (lanes, angles, True)
