"""Prints what the loops of a CPU device's machine code for a workload consist of.

Example: python bench/machine_code.py prefill/f16/neox/out/forward --device intel --write listing.s
"""

import argparse
import sys
from pathlib import Path

from tools.machine_code import kernel_code, loops

import clrope
from clrope.benchmark.workloads import select


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="its name, see `clrope bench --list --workload all`")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--write", type=Path, help="keep the whole listing in this file")
    given = parser.parse_args()
    device = clrope.device(given.device)
    for workload in select([given.workload]):
        try:
            listing, variants = kernel_code(workload, device)
        except clrope.RopeError as error:
            print(error, file=sys.stderr)
            return 1
        if given.write is not None:
            given.write.write_text(listing, encoding="utf-8")
        bytes_of_head = workload.tensors[0][3] * workload.itemsize
        print(f"{workload.name} on {device.name} ({device.platform}): {' + '.join(map(str, variants))}")
        print(f"a head has {bytes_of_head} bytes; loops that store vectors or prefetch, without the loops in them:")
        for loop in loops(listing):
            print(f"  {loop}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
