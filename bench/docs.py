"""Writes the tables of docs/performance.md and README.md and bench/figure.png from bench/results.

With --check nothing is written, and the exit code is 1 if a table is not that of the results.
"""

import argparse
import sys
from pathlib import Path

from tools.documents import documents

from clrope.benchmark.results import read_all
from clrope.portability.chart_images import write_figure
from clrope.portability.portability_report import make_report
from clrope.portability.report_files import read_files

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which tables are out of date")
    parser.add_argument("--no-figure", action="store_true", help="tables only: no matplotlib needed")
    given = parser.parse_args()
    paths = sorted(HERE.glob("results/*.json"))
    results = [result for path in paths for result in read_all(path)]
    if not results:
        print("no results; `python bench/record.py` makes them", file=sys.stderr)
        return 1
    old = {path: text for path, text in documents(results).items() if path.read_text(encoding="utf-8") != text}
    for path, text in old.items():
        print(path.name)
        if not given.check:
            path.write_text(text, encoding="utf-8")
    if given.check:
        return 1 if old else 0
    if not given.no_figure:
        write_figure(make_report(read_files(map(str, paths))).one_shot_charts, HERE / "figure.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
