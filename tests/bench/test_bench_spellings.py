"""Spellings in turn on one workload."""

import pytest

import clrope
from clrope.benchmark.spellings import compare_spellings, words_filter
from clrope.benchmark.workloads import WORKLOADS
from clrope.program.variants import Variant


def test_words() -> None:
    some = words_filter(["rows8 staged", "tiled4"])
    staged = Variant(width=8, store="staged")
    assert some(staged)
    assert some(Variant("tiled", width=4))
    assert not some(Variant(width=8))
    assert not some(Variant(width=16, store="staged"))
    assert words_filter([])(staged)


@pytest.mark.parametrize("name", ["prefill/f16/neox/out/forward", "partial-20of80/f32/normal/in/forward"])
def test_lines(device: clrope.DeviceInfo, seed: int, name: str) -> None:
    workload = next(w for w in WORKLOADS if w.name == name).tiny()
    only = words_filter(["rows8 clang", "rows8 builtin", "rows4 builtin", "strided"])
    lines = compare_spellings(workload, device, only, seed, count=2, calls=2)
    assert [line.rate for line in lines] == sorted((line.rate for line in lines), reverse=True)
    assert all(0 < line.rate <= line.most for line in lines)
    assert sum(line.chosen for line in lines) == 1
    ceilings = [line for line in lines if line.name.startswith("=")]
    assert max(line.share for line in ceilings) == 1
    names = [line.name for line in lines if not line.name.startswith("=")]
    assert len(set(names)) == len(names) > 1


def test_nothing_wanted(device: clrope.DeviceInfo) -> None:
    with pytest.raises(clrope.ConfigError, match="no candidate"):
        compare_spellings(WORKLOADS[0].tiny(), device, words_filter(["rows3"]), 1)
