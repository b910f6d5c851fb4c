"""Prints how calls end while an OpenCL function goes wrong: device × what is called × action × function × index.

`python tests/faults/fault_table.py` takes some hours: every call of every function, but those of the command
`clrope tune`, which makes more than 100,000; `tuning` is a small one. `--sample 3` takes some calls of each.
Exit code 1 for a wrong result, an error that is not this package's, a leak, memory written that was not asked for, or
a call that does not end.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fault_commands
import fault_scenarios
from fault_layer import compile_layer

import clrope

HERE = Path(__file__).parent
#: Seconds without a row after which a call is taken for one that does not end.
PATIENCE = 300.0


@dataclass(frozen=True)
class Row:
    """What became of one fault; hits: how many calls went wrong."""

    device: str
    what: str
    action: str
    function: str
    index: int
    hits: int
    outcome: str

    @property
    def fine(self) -> bool:
        """Whether the result was right, or the error was one that users expect."""
        return self.outcome == "right" or (self.outcome.startswith("error: ") and "; " not in self.outcome)


def lines_of(command: Sequence[str], env: dict[str, str]) -> Iterator[str | None]:
    """Yield the lines that a process prints; None where none came for `PATIENCE` seconds, which ends the process.

    Raises `ChildProcessError` for a process that crashes.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    assert process.stderr is not None
    printed: queue.Queue[str] = queue.Queue()
    errors: list[str] = []

    def read(stream: Iterator[str]) -> None:
        for line in stream:
            printed.put(line)
        printed.put("")

    readers = [
        threading.Thread(target=read, args=(process.stdout,), daemon=True),
        threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while line := printed.get(timeout=PATIENCE):
            yield line
    except queue.Empty:
        yield None
    finally:
        process.kill()
        code = process.wait()
        for reader, stream in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join()
            stream.close()
    if code not in (0, -9):
        raise ChildProcessError(f"CRASH, exit code {code}: {' '.join(''.join(errors).split())[-300:]}")


def calls(device: str, library: Path, what: str, action: str, sample: int, seed: int) -> Iterator[Row]:
    """Yield the rows of a scenario in a process."""
    command = [sys.executable, str(HERE / "fault_scenarios.py"), device, what, action]
    command += ["--sample", str(sample), "--seed", str(seed)]
    last = Row(device, what, action, "none", 0, 0, "")
    env = {**os.environ, "OPENCL_LAYERS": str(library)}
    if what == "tuning":
        env["PYOPENCL_NO_CACHE"] = "1"  # as in the child processes whose work it does
    try:
        for line in lines_of(command, env):
            if line is None:
                raise ChildProcessError("HANG")
            last = Row(device, what, action, *json.loads(line))
            yield last
    except ChildProcessError as error:
        yield replace(last, outcome=f"{error}; in the fault after this one")


def actions_of(what: str) -> Sequence[str]:
    """Return what can go wrong in a scenario or command."""
    return fault_scenarios.ACTIONS if what in fault_scenarios.SCENARIOS else fault_commands.ACTIONS


def everything(
    devices: Sequence[str], whats: Sequence[str], actions: Sequence[str], sample: int, seed: int, folder: Path
) -> Iterator[Row]:
    """Yield a row for every fault."""
    library = compile_layer(folder)
    if library is None:
        raise SystemExit("no C compiler: cc, gcc or clang is needed")
    for what in whats:
        possible = [action for action in actions_of(what) if action in actions]
        if what in fault_scenarios.SCENARIOS:
            for device in devices:
                for action in possible:
                    yield from calls(device, library, what, action, sample, seed)
        else:
            for action in possible:
                for found in fault_commands.rows(what, devices, library, action, sample, seed, folder):
                    yield Row(*found)


def report(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come, those of one function and outcome in one line; return those that are not fine."""
    wrong: list[Row] = []
    same: list[Row] = []
    count: Counter[str] = Counter()

    def flush() -> None:
        if same:
            first, last = same[0], same[-1]
            where = str(first.index) if len(same) == 1 else f"{first.index}..{last.index} ({len(same)})"
            mark = "  " if first.fine else "! "
            print(mark + " | ".join((first.device, first.what, first.action, first.function, where, first.outcome)))
            sys.stdout.flush()

    for row in rows:
        count["fine" if row.fine else "not fine"] += 1
        count[row.outcome.partition(":")[0]] += 1
        if not row.fine:
            wrong.append(row)
        if same and (row.what, row.device, row.action, row.function, row.outcome) != (
            same[0].what, same[0].device, same[0].action, same[0].function, same[0].outcome
        ):  # fmt: skip
            flush()
            same = []
        same.append(row)
    flush()
    print(", ".join(f"{n} {name}" for name, n in sorted(count.items())))
    return wrong


def main() -> int:
    whats = [*fault_scenarios.SCENARIOS, *fault_commands.COMMANDS]
    actions = list(dict.fromkeys((*fault_scenarios.ACTIONS, *fault_commands.ACTIONS)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", action="append", help="a device (repeatable); default: all healthy ones")
    parser.add_argument("--what", action="append", choices=whats, help="what is called (repeatable); default: all")
    parser.add_argument("--action", action="append", choices=actions, help="what goes wrong (repeatable); default: all")
    parser.add_argument("--sample", type=int, default=0, help="calls of each function; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for what in given.what or ():
        if given.action and not set(given.action) & set(actions_of(what)):
            parser.error(f"argument --action: what can go wrong in {what} is {', '.join(actions_of(what))}")
    devices = given.device or [d.index for d in clrope.devices() if d.health.ok and not d.simulator]
    with tempfile.TemporaryDirectory() as folder:
        found = everything(
            devices, given.what or whats, given.action or actions, given.sample, given.seed, Path(folder)
        )
        return 1 if report(found) else 0


if __name__ == "__main__":
    sys.exit(main())
