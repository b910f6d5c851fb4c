"""Every ```python and ```sh block of README and docs is run, or says above itself why not.

Marks are HTML comments on the lines directly above a block:
<!-- not run: reason -->  the block is left out
<!-- needs: torch -->     a package without which the rest of the page is skipped
<!-- needs: oclgrind -->  the simulator, without which the block is left out
<!-- output -->           above a ```text block: what the block before prints; '...' stands for anything

The blocks of a page run in their order, the Python ones in one namespace, in a temporary folder, on PoCL.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from clrope.errors import DeviceError
from clrope.lab.meanings import MEANINGS
from clrope.lab.oclgrind import find_library

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose blocks check, tune and measure kernels, or make reports: half of the time that all pages take.
LONG = [ROOT / "docs" / name for name in ("lab.md", "npu.md", "report.md", "compare.md")]
RUN = ("python", "sh")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- (.*?) -->$")


class Block(NamedTuple):
    """language, text, line of its first character, marks: the comments directly above."""

    language: str
    text: str
    line: int
    marks: tuple[str, ...]

    def mark(self, name: str) -> str | None:
        """What stands behind `name:`; None without the mark."""
        found = [mark[len(name) + 1 :].strip() for mark in self.marks if mark.startswith(f"{name}:")]
        return found[0] if found else None


def blocks(text: str) -> list[Block]:
    out = []
    for match in _FENCE.finditer(text):
        marks: list[str] = []
        for line in reversed(text[: match.start()].splitlines()):
            mark = _MARK.match(line)
            if mark is None:
                break
            marks.append(mark.group(1))
        out.append(Block(match.group(1), match.group(2), text.count("\n", 0, match.start()) + 2, tuple(marks)))
    return out


def changes_the_machine(block: Block) -> bool:
    """Whether a shell block installs packages or writes kept results: such a block is to be marked."""
    return block.language == "sh" and re.search(r"\bpip3? |apt-get|bench/\w+\.py", block.text) is not None


def agree(want: str, got: str) -> bool:
    """Whether a text is the expected one, blanks at line ends aside."""
    lines = ["\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n" for text in (want, got)]
    return doctest.OutputChecker().check_output(lines[0], lines[1], doctest.ELLIPSIS)


def in_python(block: Block, page: Path, names: dict[str, object]) -> str:
    # Padding makes line numbers of errors those of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other packages are not ours to mend
        warnings.filterwarnings("error", module="clrope")
        exec(code, names)
    return printed.getvalue()


def in_shell(block: Block, page: Path) -> str:
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        try:
            out, err = started.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # with the processes that it started
            raise
    assert started.returncode == 0, f"{page}:{block.line}: exit code {started.returncode}\n{out}{err}"
    return out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of what the pages name, and a `clrope` command that is this checkout's."""
    for name in ("tests/data", "bench/results", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name)
    commands = tmp_path / ".commands"
    commands.mkdir()
    for name, module in (("clrope", "-m clrope"), ("python", "")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for name, value in {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "CLROPE_DEVICE": "pocl",
        "COLUMNS": "120",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path


def has_oclgrind() -> bool:
    try:
        find_library()
    except DeviceError:
        return False
    return True


def run(page: Path, text: str) -> int:
    """Run the blocks of a page and return how many ran."""
    # A module, so that what the page defines can be found by name as in a user's script.
    module = types.ModuleType("page")
    count, printed, left_out = 0, None, False
    for block in blocks(text):
        if "output" in block.marks:
            if left_out:
                continue
            assert printed is not None, f"{page}:{block.line}: output of no block"
            assert agree(block.text, printed), f"{page}:{block.line}: printed was\n{printed}"
            continue
        printed = None
        if block.language not in RUN or block.mark("not run") is not None:
            continue
        assert not changes_the_machine(block), f"{page}:{block.line}: would install packages or write results"
        needed = block.mark("needs")
        left_out = needed == "oclgrind" and not has_oclgrind()
        if left_out:
            continue
        if needed not in (None, "oclgrind"):
            pytest.importorskip(needed)
        printed = in_python(block, page, vars(module)) if block.language == "python" else in_shell(block, page)
        count += 1
    return count


@pytest.mark.one_in(10)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in LONG], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    run(page, page.read_text(encoding="utf-8"))


@pytest.mark.one_in(32)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", LONG, ids=lambda page: page.stem)
def test_the_blocks_of_a_long_page_run(page: Path) -> None:
    run(page, page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        reason = block.mark("not run")
        assert reason is None or len(reason.split()) >= 2, f"{page}:{block.line}: no reason"


@pytest.mark.usefixtures("folder")
def test_a_wrong_block_or_output_fails() -> None:
    right = "```python\nprint(1 + 1)\n```\n\n<!-- output -->\n```text\n2\n```\n"
    assert run(Path("page.md"), right) == 1
    with pytest.raises(AssertionError, match=r"printed was\s+2"):
        run(Path("page.md"), right.replace("\n2\n", "\n3\n"))
    with pytest.raises(ZeroDivisionError):
        run(Path("page.md"), right.replace("1 + 1", "1 / 0"))
    with pytest.raises(AssertionError, match="exit code 3"):
        run(Path("page.md"), "```sh\nexit 3\n```\n")
    assert run(Path("page.md"), "<!-- not run: takes long -->\n```sh\nexit 3\n```\n") == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_files_and_headings_exist(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        file, _, heading = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in headings(there), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and MkDocs make them of its headings."""
    lines = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", line).strip().lower()) for line in lines}


def test_every_page_is_in_the_site_s_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


def test_the_table_of_meanings_is_the_lab_s() -> None:
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    assert [row for row in MEANINGS.items() if f"\n| `{row[0]}` | {row[1]} |\n" not in page] == []
    table = page.partition("\n### Meanings\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(MEANINGS)
