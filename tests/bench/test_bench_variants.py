"""Variants side by side on one workload."""

import re
import shutil
from pathlib import Path

import pytest
from tools.variants import compare_variants, words_filter

import clrope
from clrope.benchmark.entry import WrongResultError
from clrope.benchmark.workloads import WORKLOADS
from clrope.kernels.source import kernel_folder
from clrope.kernels.variant import Variant


def test_words() -> None:
    some = words_filter(["rows8 nontemporal", "strided"])
    wanted = Variant(width=8, store="nontemporal")
    assert some(wanted)
    assert some(Variant("strided"))
    assert not some(Variant(width=8))
    assert not some(Variant(width=16, store="nontemporal"))
    assert words_filter([])(wanted)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ["prefill/f16/neox/out/forward", "partial-20of80/f32/normal/in/forward"])
def test_lines(device: clrope.DeviceInfo, seed: int, name: str) -> None:
    workload = next(w for w in WORKLOADS if w.name == name).tiny()
    only = words_filter(["rows4 builtin", "strided"])  # each variant is a program to compile
    lines = compare_variants(workload, device, only, seed, count=2, calls=2)
    assert [line.rate for line in lines] == sorted((line.rate for line in lines), reverse=True)
    assert all(0 < line.rate <= line.most for line in lines)
    assert sum(line.chosen for line in lines) == 1
    ceilings = [line for line in lines if line.name.startswith("=")]
    assert 1 in [line.share for line in ceilings]
    names = [line.name for line in lines if not line.name.startswith("=")]
    assert len(set(names)) == len(names) > 1


@pytest.mark.one_in(4)
def test_quick(device: clrope.DeviceInfo, seed: int) -> None:
    workload = next(w for w in WORKLOADS if w.name == "prefill/f16/neox/out/forward").tiny()
    lines = compare_variants(workload, device, words_filter(["rows4 builtin"]), seed, count=8, calls=2, quick=True)
    ceilings = [line for line in lines if line.name.startswith("=")]
    assert len(ceilings) == 2
    assert 1 in [line.share for line in ceilings]
    (chosen,) = (line for line in lines if line.chosen)
    assert (chosen.of_chosen, chosen.error) == (1, 0)
    others = [line for line in lines if not line.chosen]
    assert len(others) > 2
    assert all(line.of_chosen > 0 and line.error is not None for line in others)


def test_nothing_wanted(device: clrope.DeviceInfo) -> None:
    with pytest.raises(clrope.ConfigError, match="no candidate"):
        compare_variants(WORKLOADS[0].tiny(), device, words_filter(["rows3"]), 1)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A copy of the kernels in another folder."""
    return Path(shutil.copytree(kernel_folder(), tmp_path / "other"))


def test_another_folder(device: clrope.DeviceInfo, seed: int, other: Path) -> None:
    workload = next(w for w in WORKLOADS if w.name == "prefill/f32/normal/out/forward").tiny()
    lines = compare_variants(workload, device, lambda variant: False, seed, count=2, calls=2, folders=[other])
    own, copied = sorted((line for line in lines if not line.name.startswith("=")), key=lambda line: len(line.name))
    assert copied.name == f"{own.name} from {other}"
    assert (own.chosen, copied.chosen) == (True, False)


@pytest.mark.one_in(4)
def test_another_folder_is_what_runs(device: clrope.DeviceInfo, seed: int, other: Path) -> None:
    for file in other.glob("*.cl*"):
        file.write_text(re.sub(r"\*(=?) (from->)?direction\b", r"*\1 -\2direction", file.read_text()))
    workload = next(w for w in WORKLOADS if w.name == "prefill/f32/normal/out/forward").tiny()
    with pytest.raises(WrongResultError, match="sampled tokens"):
        compare_variants(workload, device, lambda variant: False, seed, count=2, calls=2, folders=[other])
    compare_variants(workload, device, words_filter(["strided"]), seed, count=2, calls=2)


def test_folders_that_will_not_do(device: clrope.DeviceInfo, tmp_path: Path, other: Path) -> None:
    nothing = words_filter(["rows3"])
    with pytest.raises(clrope.ConfigError, match="lacks kernels"):
        compare_variants(WORKLOADS[0].tiny(), device, nothing, 1, folders=[tmp_path])
    fresh = next(w for w in WORKLOADS if w.fresh)
    with pytest.raises(clrope.ConfigError, match="new tables at every call"):
        compare_variants(fresh.tiny(), device, nothing, 1, folders=[other])
