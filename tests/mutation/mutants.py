"""Changes one operator or number of a module at a time, and prints the changes that no test notices.

`python tests/mutation/mutants.py --module clrope/layout.py --sample 100`; cosmic-ray makes them. The tests of each
mutant run in a forked process that has imported everything but the package. Survivors of which no test can know are in
`reviewed.toml`, with the reason. Exit code 1 for another survivor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import itertools
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
REVIEWED = Path(__file__).with_name("reviewed.toml")
#: The modules, each with its own tests; the first failure ends a mutant, so the quickest come first.
TESTS = {
    "clrope/angles.py": ("tests/test_angles.py", "tests/test_ggml_angles.py", "tests/test_config.py"),
    "clrope/layout.py": ("tests/test_layout.py", "tests/test_refusals.py"),
    "clrope/positions.py": ("tests/test_positions.py", "tests/test_failing_arrays.py"),
    "clrope/call/chunks.py": ("tests/call/test_chunks.py",),
    "clrope/select/choice.py": ("tests/select",),
    "clrope/select/database.py": ("tests/select",),
    "clrope/select/defaults.py": ("tests/select",),
    "clrope/select/records.py": ("tests/select",),
}
#: What survives them meets these.
FURTHER = ("tests/test_plan.py", "tests/test_rope.py", "tests/test_views.py", "tests/test_safety.py")
#: Imported once, before the forks. None of them starts OpenCL.
PRELOADED = (
    "numpy", "pyopencl.array", "pytest", "hypothesis.strategies", "mpmath", "ml_dtypes", "msgspec", "typer.main",
    "rich.table", "safetensors.numpy", "filelock", "cachetools",
)  # fmt: skip
#: pytest would rewrite the assertions of what it imports first.
IMPORTED_BEFORE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
#: Seconds of the processor for one mutant, and of the clock: one that does not end is noticed, too.
MOST_WORK, MOST_TIME = 60, 300
MEMORY = 16 << 30


@dataclass(frozen=True)
class Mutant:
    """One change. before, after: the first changed line."""

    module: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"


@dataclass(frozen=True)
class Review:
    """Survivors that were looked at: patterns of the module and of the changed line, and why no test can know."""

    module: str
    before: str
    reason: str
    after: str = ""

    def covers(self, mutant: Mutant) -> bool:
        """Whether a mutant is one of them."""
        pairs = ((self.module, mutant.module), (self.before, mutant.before), (self.after, mutant.after))
        return all(re.search(pattern, text) for pattern, text in pairs)


def code_of(source: str) -> str:
    """Return what of a source has an effect: all but the annotations of functions, which are text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def mutants(module: str, sample: int, seed: int) -> Iterator[Mutant]:
    """Yield changes that cosmic-ray makes of a module and that have an effect: all for 0, else a sample."""
    from cosmic_ray.commands import init
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator
    from cosmic_ray.work_db import WorkDB, use_db

    path = ROOT / module
    source = path.read_text(encoding="utf-8")
    seen = {code_of(source)}
    with use_db(":memory:", WorkDB.Mode.create) as work:
        init([path], work, {})
        changes = sorted((item.mutations[0] for item in work.work_items), key=lambda c: (c.operator_name, c.occurrence))
    random.Random(f"{seed} {module}").shuffle(changes)
    for change in changes:
        try:
            changed = mutate_code(source, get_operator(change.operator_name)(), change.occurrence)
        except AttributeError:  # of cosmic-ray: it does not replace exceptions with a dotted name
            print(f"not made: {module}:{change.start_pos[0]} {change.operator_name}")
            continue
        with contextlib.suppress(SyntaxError):
            effect = code_of(changed)
            if effect not in seen:
                seen.add(effect)
                yield Mutant(module, change.start_pos[0], *_changed_lines(source, changed), changed)
        if sample and len(seen) > sample:
            return


def _changed_lines(source: str, changed: str) -> tuple[str, str]:
    """Return the lines that differ, before and after."""
    old, new = source.splitlines(), changed.splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    parts = [(" ".join(old[i:j]), " ".join(new[k:m])) for tag, i, j, k, m in blocks if tag != "equal"]
    before, after = (" ".join(" ".join(side).split()) for side in zip(*parts, strict=True))
    return before, after


def run(mutant: Mutant, tests: Sequence[str], work: float, log: Path) -> int:
    """Fork a process that imports the changed package and runs tests, for `work` seconds at most; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        signal.setitimer(signal.ITIMER_PROF, work)
        signal.alarm(MOST_TIME)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        path, get_code = str(ROOT / mutant.module), SourceFileLoader.get_code

        def changed(self: SourceFileLoader, name: str) -> Any:
            if self.path == path:
                return compile(mutant.source, path, "exec", dont_inherit=True)
            return get_code(self, name)

        SourceFileLoader.get_code = changed  # type: ignore[method-assign]
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", *IMPORTED_BEFORE, *tests]))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = 1
    sys.stdout.flush()
    os._exit(code)


def ended(code: int) -> str:
    """Return what a process's wait status says of its mutant."""
    if os.WIFSIGNALED(code):
        return "ended by time" if os.WTERMSIG(code) in (signal.SIGALRM, signal.SIGPROF) else "crashed"
    return "killed" if os.WEXITSTATUS(code) else "survived"


def tested(
    chosen: Iterable[Mutant], quick: bool, reviewed: Sequence[Review], jobs: int, work: float, folder: Path
) -> Iterator[tuple[Mutant, str]]:
    """Yield how each mutant ended, as they end; `jobs` at a time. quick: only by the module's own tests.

    work: seconds of the processor that these may take.
    """
    waiting = ((mutant, 0) for mutant in chosen)
    again: list[tuple[Mutant, int]] = []
    number = itertools.count()
    running: dict[int, tuple[Mutant, int]] = {}
    while True:
        while len(running) < jobs and (first := again.pop() if again else next(waiting, None)):
            mutant, stage = first
            tests = [str(ROOT / test) for test in (FURTHER if stage else TESTS[mutant.module])]
            running[run(mutant, tests, MOST_WORK if stage else work, folder / f"{next(number)}.log")] = first
        if not running:
            return
        child, code = os.wait()
        mutant, stage = running.pop(child)
        outcome = ended(code)
        if outcome != "survived":
            yield mutant, outcome
        elif any(review.covers(mutant) for review in reviewed):
            yield mutant, "reviewed"
        elif stage == 0 and not quick:
            again.append((mutant, 1))
        else:
            yield mutant, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--module", action="append", choices=list(TESTS), help="repeatable; default: all")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--line", type=int, action="append", help="only mutants of this line (repeatable)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="only the module's own tests")
    given = parser.parse_args()
    os.chdir(ROOT)
    # One draw of the tests for all mutants, so that what survives one run survives the next.
    os.environ.setdefault("PYTEST_RUN_SEED", str(given.seed))
    for name in PRELOADED:
        importlib.import_module(name)
    reviewed = [Review(**row) for row in tomllib.loads(REVIEWED.read_text(encoding="utf-8"))["reviewed"]]
    found = 0
    for module in given.module or TESTS:
        begin, count = time.monotonic(), Counter[str]()
        source = (ROOT / module).read_text(encoding="utf-8")
        chosen = (m for m in mutants(module, given.sample, given.seed) if not given.line or m.line in given.line)
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder)
            for _, outcome in tested([Mutant(module, 0, "", "", source)], given.quick, [], 1, MOST_WORK, logs):
                if outcome != "survived":
                    raise SystemExit(f"{module}, unchanged: {outcome}: {(logs / '0.log').read_text()[-3000:]}")
            work = 5 + 2 * (time.monotonic() - begin)
            for mutant, outcome in tested(chosen, given.quick, reviewed, given.jobs, work, logs):
                count[outcome] += 1
                if outcome == "survived":
                    print(mutant, flush=True)
        found += count["survived"]
        counts = ", ".join(f"{n} {name}" for name, n in sorted(count.items()))
        print(f"{module}: {count.total()} mutants: {counts} ({time.monotonic() - begin:.0f} s)", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
