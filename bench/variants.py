"""Times variants of the rotation on one workload side by side with each other and the device's ceilings.

Example: python bench/variants.py prefill/f16/neox/out/forward --device pocl --only 'rows16 clang prepared'

With --kernels also other kernel sources, for instance of an earlier commit:
git worktree add ../before HEAD~1
python bench/variants.py prefill/f16/neox/out/forward --kernels ../before/kernels --quick
"""

import argparse
import sys
import time
from pathlib import Path

from tools.variants import compare_variants, words_filter

import clrope
from clrope.benchmark.workloads import select


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="its name, see `clrope bench --list --workload all`")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--only", action="append", default=[], help="words that a variant has (repeatable: or these)")
    parser.add_argument(
        "--kernels", action="append", default=[], type=Path, metavar="FOLDER",
        help="a further folder of kernel sources that take the same options (repeatable); without --only just the "
        "chosen variant",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="no warm-up, 200 rounds: for differences of a percent")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--calls", type=int, default=5)
    given = parser.parse_args()
    device = clrope.device(given.device)
    for workload in select([given.workload]):
        print(f"{workload.name} on {device.name} ({device.platform})")
        print("  GB/s  most  of the ceiling  of the chosen")
        seed = time.time_ns() % (1 << 32)
        wanted = words_filter(given.only) if given.only or not given.kernels else lambda variant: False
        count = given.rounds or (200 if given.quick else 9)
        for line in compare_variants(
            workload, device, wanted, seed, count, given.calls, given.kernels, quick=given.quick
        ):
            mark = "*" if line.chosen else " "
            error = "" if line.error is None else f"+-{line.error:.3f}"
            shares = f"{line.share:6.3f} {line.of_chosen:10.3f} {error:7}"
            print(f"{line.rate:6.1f} {line.most:5.1f} {shares} {mark} {line.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
