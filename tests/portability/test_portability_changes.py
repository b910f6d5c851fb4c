"""What became faster or slower: shares of the ceiling, noise, repeats."""

import random

import pytest
from made_up_files import small

from clrope import ConfigError
from clrope.portability.run_changes import RunChange, compare_runs

NAME = "prefill/f16/neox/out/forward"


def with_turns(rng, noise, own=1.0, machine=1.0):
    """A result whose entries have turns: 9 rounds, each by up to `noise` off, all slower by `machine`."""
    result = small()
    for workload in result["workloads"]:
        for entry in workload["entries"]:
            if entry["status"] == "ok":
                factor = machine * (own if entry["kind"] == "clrope" else 1.0)
                middle = entry["wall"]["median"] * factor
                turns = sorted(round(middle * (1 + noise * rng.uniform(-1, 1))) for _ in range(9))
                entry["wall"] |= {"min": turns[0], "p20": turns[1], "median": turns[4], "p80": turns[7]}
                rng.shuffle(turns)
                entry["wall"]["turns"] = turns
    return result


def found(old, new):
    return {(c.workload, c.device, c.kernel): c for c in compare_runs([old], [new]).changes}


def test_a_slower_machine_changes_nothing(seed):
    rng = random.Random(seed)
    changes = found(with_turns(rng, 0.001), with_turns(rng, 0.001, machine=1.7))
    one = changes[NAME, "pocl", "arrays"]
    assert one.basis == "the ceiling"
    assert one.speed == pytest.approx(1, abs=0.01)
    assert changes["decode-1/f32/neox/out/forward", "pocl", "arrays"].basis == "raw launches"
    assert {c.verdict for c in changes.values()} == {"same"}


def test_a_change_beyond_the_noise_is_found(seed):
    rng = random.Random(seed)
    one = found(with_turns(rng, 0.01), with_turns(rng, 0.01, own=1.25))[NAME, "pocl", "arrays"]
    assert one.verdict == "slower"
    assert one.speed == pytest.approx(0.8, abs=0.03)
    assert 0 < one.error < 0.03


def test_noise_is_no_change():
    assert RunChange("w", "d", "k", 0.9, 0.06, "time").verdict == "same"
    assert RunChange("w", "d", "k", 0.9, 0.04, "time").verdict == "slower"
    assert RunChange("w", "d", "k", 1.1, 0.04, "time").verdict == "faster"
    # Two runs of one program differ by so much.
    assert RunChange("w", "d", "k", 0.985, 0.0, "time").verdict == "same"


def test_noisy_turns_make_a_large_error(seed):
    rng = random.Random(seed)
    calm = found(with_turns(rng, 0.001), with_turns(rng, 0.001))[NAME, "intel", "arrays"]
    wild = found(with_turns(rng, 0.5), with_turns(rng, 0.5))[NAME, "intel", "arrays"]
    assert wild.error > 10 * calm.error


def test_of_repeats_the_middle_one_counts_and_their_spread():
    def repeated(*factors):
        results = []
        for factor in factors:
            result = small()
            for workload in result["workloads"]:
                for entry in workload["entries"]:
                    if entry["kind"] == "clrope" and entry["status"] == "ok":
                        entry["wall"] |= {k: round(entry["wall"][k] * factor) for k in ("p20", "median", "p80")}
            results.append(result)
        return results

    old, new = repeated(1.0, 1.0, 1.0), repeated(1.0, 1.25, 2.0)
    (one,) = [
        c for c in compare_runs(old, new).changes if (c.workload, c.device) == (NAME, "pocl") and c.kernel == "arrays"
    ]
    assert one.speed == pytest.approx(0.8, rel=1e-3)
    (same,) = [
        c for c in compare_runs(old, old).changes if (c.workload, c.device) == (NAME, "pocl") and c.kernel == "arrays"
    ]
    assert one.error > same.error


def test_several_machines_are_not_mixed():
    other = small()
    other["environment"] = other["environment"] | {"cpu": "B"}
    with pytest.raises(ConfigError, match="OLD: holds pocl of several machines, A and B; compare one machine"):
        compare_runs([small(), other], [small()])
    # Workers of a fleet are devices of their own.
    workers = [small() | {"worker": "w1"}, other | {"worker": "w2"}]
    devices = {c.device for c in compare_runs(workers, workers).changes}
    assert devices == {"pocl on w1", "intel on w1", "pocl on w2", "intel on w2"}
