"""Draws bench/figure.png from bench/results (CPU devices of the machine measured last), or from the given files."""

import argparse
import sys
from pathlib import Path

from clrope.benchmark.figure import draw
from clrope.benchmark.results import read
from clrope.benchmark.targets import by_machine

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "figure.png")
    given = parser.parse_args()
    results = [read(path) for path in given.files or sorted(HERE.glob("results/*/prefill-*.json"))]
    if not given.files:
        results = [r for r in results if all(d["kind"] == "cpu" for d in r["devices"].values())]
        results = next(iter(by_machine(results).values()), [])
    if not results:
        print("no results; `python bench/record.py` makes them", file=sys.stderr)
        return 1
    draw(results, given.output)
    print(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
