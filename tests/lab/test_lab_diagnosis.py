"""Each broken kernel gets the right verdict and diagnosis; right ones pass."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from lab_kernels import BROKEN, NORMAL, OFFSET, PARTIAL, PLAIN, POSITIONS, STRIDED, TABLES, YARN, changed

from clrope import DeviceInfo
from clrope.lab import load
from clrope.lab.lab_trial import LabOutcome, LabTrial
from clrope.suite.case import parse_case

pytestmark = pytest.mark.usefixtures("signatures_in_this_process")


def run(tmp_path: Path, source: str, line: str, device: DeviceInfo) -> LabOutcome:
    path = tmp_path / "mine.cl"
    path.write_text(source)
    return LabTrial(parse_case(line), secrets.randbits(32), load(path)).run_kernel(device)


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_diagnosed(name: str, device: DeviceInfo, tmp_path: Path) -> None:
    source, edits, line, said = BROKEN[name]
    outcome = run(tmp_path, changed(source, edits), line, device)
    assert outcome.status == "wrong"
    assert outcome.diagnosis, outcome
    assert said in outcome.diagnosis[0], outcome


@pytest.mark.parametrize("line", [PLAIN, NORMAL, PARTIAL, STRIDED, OFFSET, PLAIN.replace("ROPE", "ROPE_BACK")])
@pytest.mark.parametrize("source", [TABLES, POSITIONS], ids=["tables", "positions"])
def test_a_right_kernel_is_right(source: str, line: str, device: DeviceInfo, tmp_path: Path) -> None:
    outcome = run(tmp_path, source, line, device)
    if source is POSITIONS and line is STRIDED:
        assert (outcome.status, outcome.detail) == ("not expressible", "x that is not contiguous (x_head)")
    else:
        assert outcome.status == "right", outcome


@pytest.mark.parametrize("line", [YARN, YARN.replace("mode=2", "mode=0"), YARN.replace("ff=0", "ff=1")])
def test_yarn_by_positions(line: str, device: DeviceInfo, tmp_path: Path) -> None:
    assert run(tmp_path, POSITIONS, line, device).status == "right"
