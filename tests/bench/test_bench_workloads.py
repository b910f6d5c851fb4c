"""The list of workloads, how they are chosen, and the bytes they count."""

import fnmatch
import itertools

import numpy as np
import pytest

from clrope import ConfigError
from clrope.benchmark.buffers import sets_needed
from clrope.benchmark.workloads import GROUPS, LINE, WORKLOADS, Workload, select, size_name
from clrope.positions import position_rows

SHAPES = {
    "prefill": [(1, 4096, 32, 128)],
    "prompt": [(1, 512, 32, 128)],
    "batch": [(8, 512, 32, 128)],
    "gqa": [(1, 4096, 32, 128), (1, 4096, 8, 128)],
    "partial-64of128": [(1, 4096, 32, 128)],
    "partial-20of80": [(1, 4096, 32, 80)],
    "long": [(1, 32768, 8, 128)],
    "decode-1": [(1, 1, 32, 128)],
    "decode-64": [(64, 1, 32, 128)],
}


def test_names_are_different():
    names = [w.name for w in WORKLOADS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("family", SHAPES)
def test_every_combination_is_there(family):
    found = {
        (w.dtype, w.mode, w.in_place, w.forward): w
        for w in WORKLOADS
        if w.family == family and w.mode in ("normal", "neox")
    }
    wanted = set(itertools.product(("f32", "f16", "bf16"), ("normal", "neox"), (False, True), (False, True)))
    assert set(found) == wanted
    assert all(list(w.tensors) == SHAPES[family] for w in found.values())
    partial = {"partial-64of128": 64, "partial-20of80": 20}
    assert all(w.config.n_dims == partial.get(family, SHAPES[family][0][3]) for w in found.values())


def test_section_modes_are_there():
    assert {w.mode for w in WORKLOADS} == {"normal", "neox", "mrope", "imrope", "vision"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_configuration_and_positions_fit(workload):
    batch, seq = workload.tensors[0][:2]
    assert all(t[:2] == (batch, seq) for t in workload.tensors)
    where = position_rows(workload.position_array(5), workload.config, batch=batch, seq=seq)
    rows = batch * seq if workload.positions == "per batch" else seq
    assert where.count == rows
    assert workload.table_bytes == rows * workload.config.n_pairs(None) * 2 * 4
    if workload.positions == "grid":
        assert len(np.unique(workload.position_array()[1])) > 1


def lines_by_hand(workload):
    """Lines of cache with a rotated element, element by element."""
    touched = 0
    for b, s, n, d in workload.tensors:
        seen = set()
        pairs = workload.config.n_pairs(None)
        for row in range(b * s * n):
            for element in range(2 * pairs):
                seen.add((row * d + element) * workload.itemsize // LINE)
        touched += len(seen)
    return touched


@pytest.mark.parametrize(
    "workload",
    [
        Workload("a", ((1, 4, 4, 128),), "f32", "neox", True, n_dims=64),
        Workload("a", ((2, 3, 4, 80),), "f32", "neox", True, n_dims=20),
        Workload("a", ((2, 3, 4, 80),), "f16", "normal", True, n_dims=20),
        Workload("a", ((1, 4, 4, 80),), "bf16", "vision", True, sections=(20, 20, 20, 20), positions="grid"),
        Workload("a", ((1, 4, 4, 128), (1, 4, 2, 128)), "f16", "neox", True),
    ],
    ids=lambda w: f"{w.dtype}-{w.tensors[0][3]}-{w.n_dims}",
)
def test_bytes_moved_in_place(workload):
    assert workload.bytes_moved == 2 * LINE * lines_by_hand(workload)


def test_bytes_moved_out_of_place():
    (gqa,) = select(["gqa/f16/neox/out/forward"])
    assert gqa.bytes_moved == 2 * 2 * 4096 * 40 * 128


@pytest.mark.parametrize("group", GROUPS)
def test_groups_choose_something(group):
    assert select([group])


def test_choosing():
    assert select(["all"]) == list(WORKLOADS)
    assert select() == select(["standard"])
    one = select(["decode-1/f16/neox/in/backward"])
    assert [w.name for w in one] == ["decode-1/f16/neox/in/backward"]
    assert {w.family for w in select(["decode-*/f32", "vision"])} == {"decode-1", "decode-64", "vision"}
    assert all(fnmatch.fnmatch(w.name, "*/bf16/*/in/*") for w in select(["*/bf16/*/in/*"]))
    # In the order of the list, each once.
    both = select(["prefill/f32", "prefill/*/neox"])
    assert both == [w for w in WORKLOADS if w in both]


def test_a_pattern_without_a_match_is_refused():
    with pytest.raises(ConfigError, match="workload: got 'prefil', which matches none; allowed are the groups all"):
        select(["prefill", "prefil"])


def test_every_size_is_named():
    assert [size_name(1 << k) for k in (16, 20, 30)] == ["size-64KiB", "size-1MiB", "size-1GiB"]
    for w in WORKLOADS:
        if w.family.startswith("size-"):
            assert w.family == size_name(w.tensor_bytes)


@pytest.mark.parametrize("cache", [1 << 20, 32 << 20, 256 << 20])
def test_sets_are_too_many_for_the_cache(cache):
    for w in WORKLOADS:
        if w.cached:
            assert sets_needed(w, cache) == 1
        else:
            one = w.tensor_bytes * (1 if w.in_place else 2)
            # What is used again was pushed out by all the others, or by the call itself.
            assert sets_needed(w, cache) * one >= 4 * cache or sets_needed(w, cache) == 64


def test_tiny_keeps_what_matters():
    for w in WORKLOADS:
        small = w.tiny()
        assert small.name == w.name
        assert small.config == w.config
        assert small.tensor_bytes <= w.tensor_bytes
        assert small.tensor_bytes <= 1 << 18
        assert w.cached or sets_needed(small, 1 << 30) == 2
