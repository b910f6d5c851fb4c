"""Judges what must hold from bench/results, or from the given files. Exit code 1 if a row is not met."""

import sys
from pathlib import Path

from clrope.benchmark import report
from clrope.benchmark.results import read
from clrope.benchmark.targets import judge

HERE = Path(__file__).parent


def main() -> int:
    files = sys.argv[1:] or sorted(HERE.glob("results/*/*.json"))
    rows = judge([read(path) for path in files])
    print(report.target_table(rows).markdown())
    print(f"met: {sum(row.met is True for row in rows)} of {len(rows)}")
    return 0 if rows and all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
