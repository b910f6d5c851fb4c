"""Judges what must hold from bench/results, or from the given files. Exit code 1 if a row is not met."""

import argparse
import sys
from pathlib import Path

from clrope.benchmark import report
from clrope.benchmark.results import read
from clrope.benchmark.targets import judge

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- from bench/results, by `python bench/targets.py --write` -->\n", "<!-- end -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md, too")
    given = parser.parse_args()
    rows = judge([read(path) for path in given.files or sorted(HERE.glob("results/*/*.json"))])
    print(report.target_table(rows).markdown())
    met = f"met: {sum(row.met is True for row in rows)} of {len(rows)}"
    print(met)
    if given.write:
        before, begin, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise SystemExit(f"{DOCUMENT}: no place for the table between {BEGIN.strip()} and {END.strip()}")
        table = report.summary_table(rows).markdown()
        note = f"{met.capitalize()} rows; bold is what is not, in brackets what mere moving of the bytes has there."
        DOCUMENT.write_text(f"{before}{BEGIN}{table}\n{note}\n{END}{after}", encoding="utf-8")
    return 0 if rows and all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
