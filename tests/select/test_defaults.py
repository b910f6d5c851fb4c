"""The shipped defaults: where they come from, what they choose, and how tuning files become defaults."""

from __future__ import annotations

import json
import lzma
import platform
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import clrope
from clrope.cli.main import app
from clrope.device.info import DeviceInfo
from clrope.kernels.problem import AngleForm, Pairing, PairLayout, Problem
from clrope.kernels.variant import STRIDED, Variant, candidates
from clrope.layout import DTYPES, TensorView
from clrope.norm import NormForm
from clrope.select import database, defaults
from clrope.select.choice import select
from clrope.select.defaults import default_for, safe_variant
from clrope.select.records import SIZES, TuningKey, TuningRecord, VariantResult
from clrope.tune.write_defaults import compact, dumps, merged_defaults

POCL, INTEL = "Portable Computing Language", "Intel(R) OpenCL"


def machine(cpu: DeviceInfo, lanes: int, **changes: Any) -> DeviceInfo:
    return replace(cpu, native_widths=cpu.native_widths._replace(float=lanes), **changes)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", ["AMD EPYC", "pthread-AMD EPYC 9B45 128-Core", "Intel(R) Xeon(R) Processor", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_are_what_was_tried(
    dtype: str, name: str, arch: str, cpu: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only variants that tuning tries, of tried drivers; others get the safe one."""
    monkeypatch.setattr(platform, "machine", lambda: arch)
    keys = [key for pairing in get_args(Pairing) for key in database.tuning_keys(dtype, pairing)]
    for platform_name, driver, tried in (
        (POCL, "3.0-rc2", True),
        (POCL, "3.1+debian", True),
        (POCL, "99.1", False),
        (INTEL, "2026.22.10.0.01_160000", arch == "x86_64"),
        ("Something New", "3.0", False),
    ):
        for kind, lanes, key in product(("cpu", "gpu", "accelerator", "custom"), (4, 8, 16), keys):
            target = machine(cpu, lanes, platform=platform_name, driver_version=driver, kind=kind, name=name)
            variant = default_for(target, key)
            if kind != "cpu" or not tried:
                assert variant == safe_variant(kind, dtype)
            assert variant in candidates(kind, dtype)
            if arch != "x86_64":
                assert variant.parameters.get("nan", "any") == "any"


def small(config: clrope.RopeConfig, head_dim: int, **form: Any) -> Problem:
    view = TensorView.dense((1, 1, 32, head_dim), "f32")
    pairs = PairLayout.of_config(config, head_dim)
    return Problem(view.shape, "f32", view.strides, view.strides, pairs, angles=AngleForm(**form))


def test_a_decode_step_needs_no_table(cpu: DeviceInfo, cache: Path) -> None:
    target = machine(cpu, 8, platform=INTEL, kind="cpu", driver_version="2026")
    whole, part = clrope.RopeConfig("neox", 128), clrope.RopeConfig("normal", 64)
    for config in (whole, part):
        for counting in (True, False):
            at = small(config, 128, exact=True, counting=counting)
            assert select(target, at, at.nbytes).angles == "fused"
        assert select(target, small(config, 128), 1 << 14).angles == "cached"
    at = small(whole, 128, exact=True)
    assert select(target, at, 4 << 20).angles == "fused"
    assert select(target, at, 64 << 20).angles == "cached"
    # Arrays of NumPy's are aligned to 16 bytes: shorter non-temporal stores where these are the default, and no table.
    target = replace(target, name="Intel(R) Xeon(R) Processor")
    apart = select(target, replace(at, y_alignment=16), 4 << 20)
    assert (apart.angles, apart.store, apart.width) == ("fused", "nontemporal", 4)


NORM_WIDTHS = [
    (INTEL, 8, "f32", (8, 8)), (INTEL, 16, "f32", (16, 16)), (INTEL, 8, "f16", (16, 16)), (POCL, 8, "f32", (16, 8)),
    (INTEL, 16, "f64", (8, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("platform", "float_width", "dtype", "width"), NORM_WIDTHS)
def test_a_norm_has_a_width_of_its_own_and_computes_angles(
    cpu: DeviceInfo, cache: Path, platform: str, float_width: int, dtype: str, width: tuple[int, int]
) -> None:
    """width: in the caches, and from memory."""
    target = machine(cpu, float_width, platform=platform, kind="cpu", driver_version="3.1", name="AMD X")
    at = small(clrope.RopeConfig("neox", 128), 128, exact=True)
    normed = replace(at, dtype=dtype, norm=NormForm("head", "before", "once", 1e-6, 128))
    for nbytes, wanted in zip((1 << 14, 64 << 20), width, strict=True):
        variant = select(target, normed, nbytes)
        assert (variant.kernel, variant.width, variant.angles) == ("norm_rows", wanted, "fused")
        alone = replace(normed, pairs=PairLayout.none(128))
        assert select(target, alone, nbytes) == variant


def test_each_row_says_where_it_comes_from() -> None:
    data = defaults.table()
    for row in data["rows"]:
        assert row["family"] in data["families"]
        assert len(row["origin"]) > 20
        assert Variant(**row["variant"])
    assert defaults.PATH.read_text() == dumps(data)
    for number, row in enumerate(data["rows"]):
        assert row not in data["rows"][:number]


@pytest.mark.parametrize("kind", ["cpu", "accelerator", "gpu"])
@pytest.mark.parametrize("cache_bytes", [40 * 2**20 + 3, 2**40, 0])
def test_what_counts_as_large(cpu: DeviceInfo, kind: str, cache_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs calls of a fourth of the largest cache, elsewhere of 32 MiB: no bytes of the host's cache count."""
    monkeypatch.setattr(defaults, "host_cache_bytes", lambda: cache_bytes)
    device = replace(cpu, kind=kind)
    part = cache_bytes // 4 if kind == "cpu" and cache_bytes else 2**25
    most = min(part, 2**25)
    medium = defaults.medium_bytes(device)
    sizes = [defaults.size_class(device, n) for n in (medium - 1, medium, most - 1, most)]
    assert sizes == ["small", "medium", "medium", "large"]


def test_the_first_family_counts(cpu: DeviceInfo) -> None:
    families = defaults.table()["families"]
    facts = database.device_facts(machine(cpu, 16, platform=POCL, driver_version="3.1", kind="cpu", name="AMD X"))
    assert defaults.family_of(facts, families) == "pocl-amd-avx512"
    assert defaults.family_of({**facts, "name": "other"}, families) == "pocl-avx512"
    assert defaults.family_of({**facts, "name": "other", "float_width": 4}, families) == "pocl-short"
    assert defaults.family_of({**facts, "driver": "4.0"}, families) is None
    assert [defaults.matches({"float_width": [4, 8]}, {"float_width": n}) for n in (3, 4, 8, 9)] == [
        False, True, True, False
    ]  # fmt: skip


def test_compact_says_the_same() -> None:
    rows = [
        {"family": "f", "dtype": [d], "pairing": [p], "in_place": [i], "size": [s], "variant": v, "origin": "here"}
        for d, v in (("f32", 1), ("f16", 1), ("f64", 2)) for p in ("normal", "neox") for i in (False, True)
        for s in SIZES
    ]  # fmt: skip
    short = compact(rows)
    assert [(row["dtype"], row["variant"]) for row in short] == [(["f32", "f16"], 1), (["f64"], 2)]
    assert all(row["size"] == list(SIZES) and row["in_place"] == [False, True] for row in short)


def test_kept_tuning_results_give_the_shipped_rows(tmp_path: Path) -> None:
    kept = sorted((Path(__file__).parents[2] / "bench" / "results").glob("tuning-*.json.xz"))
    files = [tmp_path / packed.stem for packed in kept]
    for file, packed in zip(files, kept, strict=True):
        file.write_bytes(lzma.decompress(packed.read_bytes()))
    assert files
    for file in files:
        written = json.loads(file.read_text())["entries"]
        assert list(database.entries(str(file))) == list(written), f"{file.name}: its variants are no longer ones"
    assert merged_defaults([str(file) for file in files]) == defaults.table()


def keys_of(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    return product(*(row[name] for name in defaults.KEY_FIELDS))


def key_values(key: TuningKey) -> tuple[Any, ...]:
    return tuple(getattr(key, name) for name in defaults.KEY_FIELDS)


def test_written_from_tuning_files(
    cpu: DeviceInfo, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Winners of two machines of one family, and of a device that is of none."""
    key = TuningKey("f32", "neox", False, "large")
    a, b, c = Variant(width=2), Variant(width=4), Variant(width=8)
    known = machine(cpu, 16, platform=INTEL, kind="cpu", name="AMD one")
    new = machine(cpu, 4, platform="Something New", kind="gpu", name="GPU (TM)")

    def saved(device: DeviceInfo, *seconds: float) -> None:
        best = min(seconds)
        results = [
            VariantResult(v, "ok" if s == best else "slower", seconds=s)
            for v, s in zip((a, b, c), seconds, strict=True)
        ]
        database.save(device, [TuningRecord(key, tuple(results), 1 << 20)])

    saved(known, 1.0, 1.1, 2.0)
    saved(replace(known, name="AMD two"), 2.0, 1.1, 1.0)
    saved(new, 3.0, 2.0, 1.0)
    file = tmp_path / "tuning-of-two.json"
    file.write_text((cache / "tuning.json").read_text())
    done = CliRunner().invoke(app, ["tune", "--write-defaults", str(file)])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data == merged_defaults([str(file)])
    first, second = data["rows"][:2]
    # Neither's fastest, but never far behind.
    assert (first["family"], Variant(**first["variant"])) == ("intel-amd-avx512", b)
    assert "AMD one" in first["origin"]
    assert "AMD two" in first["origin"]
    assert second["family"] == "Something New GPU (TM)"
    # What the new rows decide is no longer in the others.
    others = [(row["family"], *values) for row in data["rows"][1:] for values in keys_of(row)]
    assert ("intel-amd-avx512", *key_values(key)) not in others
    shipped = [(row["family"], *values) for row in defaults.table()["rows"] for values in keys_of(row)]
    first_and_second = [(row["family"], *key_values(key)) for row in (first, second)]
    assert sorted(map(str, {*others, first_and_second[0]})) == sorted(map(str, {*shipped, first_and_second[1]}))
    monkeypatch.setattr(defaults, "PATH", tmp_path / "defaults.json")
    (tmp_path / "defaults.json").write_text(done.stdout)
    defaults.table.cache_clear()
    try:
        assert default_for(known, key) == b
        assert default_for(new, key) == c
        assert default_for(new, replace(key, size="small")) == safe_variant("gpu", "f32")
    finally:
        monkeypatch.undo()
        defaults.table.cache_clear()
    assert CliRunner().invoke(app, ["tune", "--write-defaults"]).exit_code == 2
    (tmp_path / "other.json").write_text('{"schema": "clrope.tuning/4", "entries": {}}')
    refused = CliRunner().invoke(app, ["tune", "--write-defaults", str(tmp_path / "other.json")])
    assert refused.exit_code == 2
    assert "other.json: no records of clrope.tuning/6" in refused.output


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_safe_variant(dtype: str) -> None:
    """On CPUs vectors of 32 bytes of the computing type."""
    assert safe_variant("cpu", dtype) == Variant(width=4 if dtype == "f64" else 8)
    assert safe_variant("gpu", dtype) == Variant("lanes")
    assert safe_variant("accelerator", dtype) == safe_variant("custom", dtype) == STRIDED
