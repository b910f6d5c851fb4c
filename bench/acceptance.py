"""Checks the acceptance of bench/results, or of the given files. Exit code 1 if a row is not met."""

import argparse
import sys
from pathlib import Path

from tools.acceptance import by_machine, check, target_table

from clrope.benchmark.results import read_all

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    files = given.files or sorted(HERE.glob("results/*.json"))
    results = [result for path in files for result in read_all(path)]
    machines = {cpu: check(found) for cpu, found in by_machine(results).items()}
    for cpu, rows in machines.items():
        print(f"{cpu}\n\n{target_table(rows).markdown()}")
        print(f"met: {sum(row.met is True for row in rows)} of {len(rows)}\n")
    return 0 if machines and all(row.met for rows in machines.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
