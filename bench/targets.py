"""Judges what must hold from bench/results, or from the given files. Exit code 1 if a row is not met."""

import argparse
import sys
from pathlib import Path

from clrope.benchmark import report
from clrope.benchmark.results import read
from clrope.benchmark.targets import by_machine, judge

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- from bench/results, by `python bench/targets.py --write` -->\n", "<!-- end -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md, too")
    given = parser.parse_args()
    results = [read(path) for path in given.files or sorted(HERE.glob("results/*/*.json"))]
    machines = {cpu: judge(found) for cpu, found in by_machine(results).items()}
    for cpu, rows in machines.items():
        print(f"{cpu}\n\n{report.target_table(rows).markdown()}")
        print(f"met: {sum(row.met is True for row in rows)} of {len(rows)}\n")
    if given.write:
        before, begin, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise SystemExit(f"{DOCUMENT}: no place for the table between {BEGIN.strip()} and {END.strip()}")
        text = "".join(report.machine_section(cpu, rows) for cpu, rows in machines.items())
        DOCUMENT.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    return 0 if machines and all(row.met for rows in machines.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
