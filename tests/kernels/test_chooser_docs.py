"""The table in docs/chooser.md is the kernels' own; run as a program, this file writes it."""

from __future__ import annotations

from pathlib import Path

from clrope.kernels.variant import KERNELS, parameter_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chooser.md"
FIRST, LAST = "<!-- parameters -->\n", "<!-- end -->\n"


def table() -> str:
    lines = [f"- {kernel.summary}" for kernel in KERNELS.values()]
    lines += ["", "| kernel | parameter | values | |", "|---|---|---|---|"]
    lines += [f"| `{kernel}` | `{name}` | {values} | {text} |" for kernel, name, values, text in parameter_table()]
    return "\n".join(lines) + "\n"


def test_the_table_is_the_kernels_own() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(FIRST)[2].partition(LAST)[0] == table()


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, after = page.partition(FIRST)
    PAGE.write_text(before + FIRST + table() + LAST + after.partition(LAST)[2], encoding="utf-8")
