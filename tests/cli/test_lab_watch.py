"""`clrope lab --watch` runs again after each change of the file, until Ctrl-C."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import HANGING, start

from clrope import DeviceInfo
from clrope.cli import lab_watch
from clrope.cli.lab_watch import changes
from clrope.lab.included import included_files
from clrope.lab.lab_kernel import load_file
from clrope.lab.lab_run import LabDeviceReport, LabReport, LabResult
from clrope.lab.lab_trial import LabOutcome
from clrope.lab.new_kernel import write_new
from clrope.suite.conformance import Target


def report(path: Path, *statuses: str) -> LabReport:
    """Return a made-up report: case k of suite seed has the k-th status."""
    results = [LabResult("seed", f"case {k}", LabOutcome(status), 0.0) for k, status in enumerate(statuses)]
    device = LabDeviceReport(Target("intel 0:0", None, "", False), results)
    return LabReport(load_file(path), "k()", 1, ["seed"], [device])


def test_changes(tmp_path: Path) -> None:
    path = write_new(str(tmp_path / "mine"), "simple")
    right, wrong = report(path, "right", "right", "right"), report(path, "right", "wrong", "wrong")
    assert list(changes(wrong, right)) == [
        "changed: intel 0:0 seed: wrong to right; 2 cases are right now, 0 no longer"
    ]
    assert list(changes(right, wrong)) == [
        "changed: intel 0:0 seed: right to wrong; 0 cases are right now, 2 no longer"
    ]
    other = report(path, "wrong", "right", "wrong")
    assert list(changes(wrong, other)) == ["changed: intel 0:0 seed: wrong; 1 cases are right now, 1 no longer"]
    assert list(changes(right, right)) == ["changed: no verdict"]
    elsewhere = replace(right, devices=[LabDeviceReport(Target("pocl 1:0", None, "", False))])
    assert list(changes(right, elsewhere)) == ["changed: no verdict"]


def test_a_save_in_two_steps_is_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before, emptied, written = [(1, 40, 7)], [(2, 0, 7)], [(3, 41, 7)]
    looks = iter([before, before, emptied, written, written])
    monkeypatch.setattr(lab_watch, "_state", lambda files: next(looks))
    monkeypatch.setattr(lab_watch, "_PAUSE", 0)
    lab_watch._wait(["mine.cl"], before)
    assert list(looks) == []


@pytest.mark.one_in(4)
def test_files_that_are_mended_while_they_are_watched(device: DeviceInfo, tmp_path: Path) -> None:
    path, inner = write_new(str(tmp_path / "mine"), "simple"), tmp_path / "more" / "inner.h"
    text = path.read_text()
    right = '#include "more/outer.h"\n' + text.replace("a * c - b * s", "TURN(a, b, c, s)")
    assert "TURN" in right
    inner.parent.mkdir()
    turn = "#define TURN(a, b, c, s) (a * c {} b * s)\n"
    save(path, right)
    save(inner.with_name("outer.h"), '# include "inner.h"\n')
    save(inner, turn.format("+"))
    # No drawn case has this n_ctx, so that none is drawn.
    words = ["--suite", "seed", "--filter", "type=f32,ne_a=[64,71,2,1] n_ctx=512, ff=0"]
    with start("lab", path, "--watch", "--device", device.index, *words) as process:
        assert process.stdout is not None
        try:
            shown = until("waiting for a change", process.stdout)
            assert "diagnosis: " in shown
            assert "NOT RIGHT" in shown
            assert shown.splitlines()[-1] == (
                f"waiting for a change of {path}, {tmp_path}/more/outer.h, {inner}; Ctrl-C ends"
            )
            save(inner, turn.format("-"))
            shown = until("waiting for a change", process.stdout)
            assert "changed: " in shown
            assert " seed: wrong to right; " in shown
            save(path, "int nothing(void);")
            until("waiting for a change", process.stdout)
            save(path, text)
            assert "changed: no verdict" in until("waiting for a change", process.stdout)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=HANGING)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "has no __kernel function" in stderr
    assert stderr.splitlines()[-1] == "clrope: interrupted"


def test_the_files_that_a_kernel_includes(tmp_path: Path) -> None:
    for folder in ("more", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "more" / "a.h").write_text('#include "b.h"\n#include "a.h"\n')
    (tmp_path / "more" / "loop").symlink_to(".")
    (tmp_path / "other" / "c.h").write_text("")
    comment = '// #include "no.h"\n/*\n#include "no.h"\n*/\n'
    source = f'\t# include "more/a.h"\n{comment}#include <c.h>\n#include "c.h" // why\n'
    found = included_files(tmp_path / "k.cl", source, ["-DX=1", f"-I{tmp_path}/other"])
    there = [str(p.relative_to(tmp_path)) for p in found if p.exists()]
    assert there == ["more/a.h", "other/c.h"]
    # A file that is not there yet is looked for in each folder.
    assert {str(p.relative_to(tmp_path)) for p in found} == {
        *there, "other/more/a.h", "c.h", "more/b.h", "b.h", "other/b.h", "a.h", "other/a.h",
    }  # fmt: skip
    assert found == included_files(tmp_path / "k.cl", source, ["-I", f"{tmp_path}/other"])
    (tmp_path / "more" / "a.h").write_text('#include "loop/a.h"\n')
    assert len(included_files(tmp_path / "k.cl", source)) <= 200
    os.mkfifo(tmp_path / "more" / "b.h")
    assert included_files(tmp_path / "k.cl", '#include "more/b.h"') == [tmp_path / "more" / "b.h"]


def test_a_file_that_changes_while_it_is_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    names = iter([["a"], ["a", "b"], ["a", "b"], ["a", "b"]])
    assert lab_watch._names_and_state(lambda: next(names)) == (["a", "b"], [None, None])


def save(path: Path, text: str) -> None:
    """Save in one step, however slow this process is."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def until(text: str, lines: object) -> str:
    """Read lines up to one that has a text."""
    shown = ""
    for line in lines:  # type: ignore[attr-defined]
        shown += line
        if text in line:
            return shown
    raise AssertionError(f"the output ended without {text!r}:\n{shown}")
