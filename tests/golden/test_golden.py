"""Results have the bits that they had in earlier versions: inputs of a fixed seed, digests kept in this folder."""

from __future__ import annotations

import numpy as np
import pytest
from golden_digests import cases, digests, read

from clrope import DeviceInfo
from clrope.suite import suite_names

#: Cases of each suite and storage type in a run; `--all` takes all.
SAMPLE = 6
COMMAND = "`python tests/golden/golden_digests.py --suite {}` writes them"


@pytest.mark.parametrize("suite", suite_names())
def test_each_case_has_its_digests(suite: str) -> None:
    golden = {(kind, label) for kind, group in read(suite).items() for label in group}
    labels = {(kind, case.label) for kind, case in cases(suite)}
    assert golden == labels, COMMAND.format(suite)


@pytest.mark.one_in(24)
@pytest.mark.parametrize(("suite", "kind"), [(suite, kind) for suite in suite_names() for kind in read(suite)])
def test_the_bits_are_as_they_were(
    suite: str, kind: str, device: DeviceInfo, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    golden = read(suite)[kind]
    found = [case for of, case in cases(suite) if of == kind]
    if not request.config.getoption("--all"):
        found = [found[n] for n in rng.choice(len(found), min(SAMPLE, len(found)), replace=False)]
    for case in found:
        now = digests(case, device)
        if now is None:
            continue  # a package or the device's fp64 is missing
        inputs, result = golden[case.label]
        assert now[0] == inputs, f"{suite}: {case.label}: other inputs: NumPy's random numbers, or the suite, changed"
        assert now[1] == result, f"{suite}: {case.label}: other bits on {device}"
