"""Peers, where they are installed, rotate right or say why not; and a wrong one is found out."""

import pytest

from clrope import ConfigError
from clrope.benchmark import peers as peer_package
from clrope.benchmark.buffers import HostSets, make_inputs
from clrope.benchmark.entry import BenchmarkEntry, Refused, WrongResultError
from clrope.benchmark.validation import ResultCheck
from clrope.benchmark.workloads import select

PATTERNS = ["prefill", "gqa/*/forward", "partial-20of80/*/forward", "decode-64", "vision/*/forward", "batch/*/forward"]
WORKLOADS = [w for w in select(PATTERNS) if w.peers]
#: Compiling takes seconds a case.
FEW = [w for w in WORKLOADS if w.name in ("prefill/f32/neox/out/forward", "partial-20of80/f16/normal/out/forward")]


def prepare(peer, workload, seed, threads=1):
    sets = HostSets(make_inputs(workload.tiny(), seed))
    task = peer_package.task_of(sets, threads)
    return peer_package.peer_entry(peer, sets, task, ResultCheck(sets.inputs, seed))


# torch warns of its own use of what it has deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", peer_package.NAMES)
@pytest.mark.one_in(6)
def test_peer_is_right_or_says_why_not(name, seed):
    (peer,) = peer_package.peers([name])
    assert peer.name == name
    if peer.version() is None:
        pytest.skip(f"{name} is not installed")
    done, refused = 0, []
    for workload in FEW if name == "torch_compile" else WORKLOADS:
        try:
            entry, prepared = prepare(peer, workload, seed)
        except Refused as reason:
            refused.append((workload, str(reason)))
            continue
        except Exception as error:
            raise AssertionError(f"{name} on {workload.name}, seed {seed}") from error
        assert isinstance(entry, BenchmarkEntry)
        entry.check()
        if prepared.close is not None:
            prepared.close()
        done += 1
    assert done >= 2
    assert all(reason and (w.in_place or w.dtype != "f32") for w, reason in refused), refused
    assert done + len(refused) == len(FEW if name == "torch_compile" else WORKLOADS)


def test_threads_are_taken(seed):
    for peer in peer_package.peers(["ggml", "numba"]):
        if peer.version() is not None:
            entry, prepared = prepare(peer, FEW[0], seed, threads=2)
            entry.check()
            if prepared.close is not None:
                prepared.close()


@pytest.mark.parametrize("fault", ["nothing", "forward", "half"])
def test_a_peer_that_is_wrong_is_not_timed(fault, seed):
    def prepare_wrong(task):
        def call(i):
            for x, y in zip(task.x[i], task.y[i], strict=True):
                if fault == "forward":
                    y[...] = x
                elif fault == "half":
                    y[:, : y.shape[1] // 2] = x[:, : y.shape[1] // 2]

        return peer_package.Prepared(call)

    entry, _ = prepare(peer_package.BenchmarkPeer("wrong", (), prepare_wrong), FEW[0], seed)
    with pytest.raises(WrongResultError):
        entry.check()


def test_unknown_peer():
    with pytest.raises(ConfigError, match="peer: got 'mlx', allowed are ggml, numba, numpy"):
        peer_package.peers(["mlx"])
