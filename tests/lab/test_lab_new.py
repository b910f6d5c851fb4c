"""`clrope lab --new` writes kernels that are right, race-free, and never over a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from clrope import ConfigError, DeviceError, DeviceInfo, RopeError
from clrope.lab.lab_kernel import load_file
from clrope.lab.lab_run import LabRun
from clrope.lab.new_kernel import kinds, write_new
from clrope.lab.oclgrind import find_library
from clrope.lab.simulator import simulate


@pytest.mark.one_in(20)
@pytest.mark.parametrize("words", ["type=f32 mode=0", "type=f32 mode=2", "type=f16 mode=0", "type=f16 mode=2"])
@pytest.mark.parametrize("like", kinds())
def test_a_new_kernel_is_right(device: DeviceInfo, tmp_path: Path, like: str, words: str) -> None:
    path = write_new(str(tmp_path / "mine"), like)
    (report,) = LabRun(load_file(path), None, ["seed"], text=words).on_devices([device.index]).devices
    assert report.ok, report.first_failure
    assert report.verdict("seed") == "right"
    assert report.counts("seed")["right"] >= 10


@pytest.mark.one_in(6)
@pytest.mark.parametrize("like", kinds())
def test_a_new_kernel_has_no_race(tmp_path: Path, like: str) -> None:
    try:
        find_library()
    except DeviceError as error:
        pytest.skip(str(error).splitlines()[0])
    report = simulate(load_file(write_new(str(tmp_path / "mine"), like)))
    assert report.ok, (report.problem, report.findings)
    assert report.ran >= 4


@pytest.mark.one_in(4)
@pytest.mark.parametrize("like", kinds())
def test_a_new_kernel_explains_itself(tmp_path: Path, like: str) -> None:
    path = write_new(str(tmp_path / "turn.cl"), like)
    text = path.read_text()
    assert load_file(path).check().name == "turn"
    assert "KERNEL" not in text
    assert len([line for line in text.splitlines() if "//" in line]) >= 8


def test_new_kernels_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text("mine")
    with pytest.raises(RopeError, match=r"--new: .*mine\.cl: cannot be written \(File exists\)"):
        write_new(str(path), "simple")
    assert path.read_text() == "mine"
    with pytest.raises(RopeError, match="No such file or directory"):
        write_new(str(tmp_path / "none" / "mine"), "simple")
    with pytest.raises(ConfigError, match=r"--like: got .fast., allowed are .*simple, vector"):
        write_new(str(tmp_path / "other"), "fast")
    for name in ("2nd", "a-b", "", "π"):
        with pytest.raises(ConfigError, match="a name of letters, digits and _ is needed"):
            write_new(str(tmp_path / name) if name else ".cl", "simple")
