"""Digests of the inputs and results of every case of every suite, as an earlier version had them.

`python tests/golden/golden_digests.py` writes the files of this folder, one for each suite, on one device; afterwards
`git diff --stat` shows what changed. Results keep their bits, so a change of a digest belongs into the changelog.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import clrope
from clrope.suite.call_trial import CallTrial
from clrope.suite.case_outcome import SuiteCase
from clrope.suite.grids.interop.line import PeerTrial
from clrope.suite.registry import cases_of, suites
from clrope.suite.rope_trial import RopeTrial

FOLDER = Path(__file__).parent
#: Of all inputs, for good.
SEED = 20261124
#: Digests by storage type and a case's label: of the inputs, and of the result.
Golden = dict[str, dict[str, tuple[str, str]]]


def storage_type(case: SuiteCase) -> str:
    """The type that a case's label names."""
    found = re.search(r"\btype=(\w+)", case.label)
    assert found is not None, case.label
    return found[1]


def cases(suite: str) -> Iterator[tuple[str, SuiteCase]]:
    """The cases of a suite with their storage types."""
    for case in cases_of(suites()[suite]):
        yield storage_type(case), case


def inputs_digest(trial: Any) -> str:
    """Digest of everything that a case's seed draws."""
    if isinstance(trial, PeerTrial):
        arrays, text = [x for x in trial.call.inputs if x is not None], str(trial.call)
    else:
        x = trial.x.parent if isinstance(trial, RopeTrial) else trial.x
        tensors = x if isinstance(trial, CallTrial) else [x]
        arrays, text = [*tensors, np.asarray(trial.positions)], repr(trial.config)
    total = hashlib.sha256(text.encode())
    for array in arrays:
        total.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return total.hexdigest()[:16]


def digests(case: SuiteCase, device: clrope.DeviceInfo) -> tuple[str, str] | None:
    """Inputs and result of a case on a device; None if it cannot run there. `AssertionError` if it fails."""
    trial = case.prepare(SEED)
    outcome = trial.run(device)
    if outcome.status == "skip":
        return None
    assert outcome.status == "ok", f"{case.label}: {outcome.text}"
    assert trial.digest in ("", outcome.digest), f"{case.label}: NumPy's bits are {trial.digest}, not {outcome.digest}"
    # A call that is refused, as it must be, has no result.
    return inputs_digest(trial), outcome.digest or outcome.detail


def read(suite: str) -> Golden:
    """The digests of a suite as they were written."""
    found = json.loads((FOLDER / f"{suite}.json").read_text(encoding="utf-8"))
    assert found["seed"] == SEED
    return {kind: {label: tuple(pair) for label, pair in group.items()} for kind, group in found["cases"].items()}


def write(suite: str, device: clrope.DeviceInfo) -> int:
    """Write the digests of a suite; return how many cases could not run."""
    golden: dict[str, list[str]] = {}
    left = 0
    for kind, case in cases(suite):
        pair = digests(case, device)
        left += pair is None
        if pair is not None:
            golden.setdefault(kind, []).append(f"{json.dumps(case.label)}: {json.dumps(pair)}")
    groups = ",\n".join(f'"{kind}": {{\n' + ",\n".join(lines) + "\n}" for kind, lines in golden.items())
    text = f'{{"seed": {SEED}, "clrope": "{clrope.__version__}", "cases": {{\n{groups}\n}}}}\n'
    (FOLDER / f"{suite}.json").write_text(text, encoding="utf-8")
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--suite", action="append", choices=list(suites()), help="suite (repeatable); default: all")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = clrope.device(given.device)
    total = 0
    for suite in given.suite or suites():
        left = write(suite, device)
        total += left
        print(f"{suite}: written on {device.name}" + (f"; {left} cases could not run and were left out" * bool(left)))
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
