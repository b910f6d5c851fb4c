"""Writes the tables of docs/performance.md and README.md and bench/figure.png from bench/results.

With --check nothing is written, and the exit code is 1 if a table is not that of the results.
"""

import argparse
import sys
from pathlib import Path

from tools.documents import documents, of_prefill

from clrope.benchmark.figure import draw
from clrope.benchmark.results import read_all

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say which tables are out of date")
    parser.add_argument("--no-figure", action="store_true", help="tables only: no matplotlib needed")
    given = parser.parse_args()
    results = [result for path in sorted(HERE.glob("results/*.json")) for result in read_all(path)]
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
        newest = of_prefill(results)
        draw([r for r in newest if all(d["kind"] == "cpu" for d in r["devices"].values())], HERE / "figure.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
