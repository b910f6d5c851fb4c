"""`clrope lab --watch`: runs again whenever a file is saved, and says what changed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import RopeError
from .exit_code import error_text
from .output import print_line

if TYPE_CHECKING:
    from ..lab.lab_run import LabReport

#: Seconds between two looks at the files.
_PAUSE = 0.2


def watch(files: Callable[[], Sequence[str]], run: Callable[[], LabReport]) -> None:
    """Run now and after each change of a file, until a signal ends the process. Errors are printed, not raised.

    files: returns their names, which a change may change; those without a file may get one.
    """
    before: LabReport | None = None
    while True:
        names, state = _names_and_state(files)
        try:
            report = run()
            for line in changes(before, report) if before is not None else ():
                print_line(line)
            before = report
        except RopeError as error:
            print(f"clrope: {error_text(error)}", file=sys.stderr)
        there = [name for name, found in zip(names, state, strict=True) if found is not None]
        print_line(f"waiting for a change of {', '.join(there or names[:1])}; Ctrl-C ends")
        sys.stdout.flush()
        _wait(names, state)


def _names_and_state(files: Callable[[], Sequence[str]]) -> tuple[Sequence[str], list[tuple[int, int, int] | None]]:
    """Return the names of the files, and their state since they have these names."""
    while True:
        names = files()
        state = _state(names)
        if files() == names:
            return names, state


def _wait(files: Sequence[str], seen: list[tuple[int, int, int] | None]) -> None:
    """Wait for a change of the files, and until it is over: many a save empties a file and writes it afterwards."""
    while (now := _state(files)) == seen:
        time.sleep(_PAUSE)
    before = None
    while now != before:
        time.sleep(_PAUSE)
        before, now = now, _state(files)


def _state(files: Sequence[str]) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for name in files:
        try:
            stat = os.stat(name)
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append(None)  # an editor is about to replace it
    return found


def changes(before: LabReport, after: LabReport) -> Iterator[str]:
    """Yield a line for each device and suite whose verdict or failing cases changed."""
    said = False
    earlier = {d.target.name: d for d in before.devices}
    for d in after.devices:
        old = earlier.get(d.target.name)
        if old is None:
            continue
        for suite in after.suites:
            was, now = (
                {(r.case, r.outcome.status == "right") for r in x.results if r.suite == suite} for x in (old, d)
            )
            mended = len({case for case, right in now - was if right})
            broken = len({case for case, right in was - now if right})
            verdicts = " to ".join(dict.fromkeys((old.verdict(suite), d.verdict(suite))))
            if mended or broken or old.verdict(suite) != d.verdict(suite):
                said = True
                yield f"changed: {d.target.name} {suite}: {verdicts}; {mended} cases are right now, {broken} no longer"
    if not said:
        yield "changed: no verdict"
