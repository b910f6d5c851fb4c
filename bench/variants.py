"""Times variants of the rotation on one workload side by side with each other and the device's ceilings.

Example: python bench/variants.py prefill/f16/neox/out/forward --device pocl --only 'rows16 clang'

With --kernels also other kernel sources, for instance of an earlier commit:
git worktree add ../before HEAD~1
python bench/variants.py prefill/f16/neox/out/forward --kernels ../before/kernels --quick

With --tuned the saved winners of `clrope tune` next to the defaults; exit code 1 if one is slower:
python bench/variants.py --tuned --device pocl --type f16
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.variants import compare_variants, compare_winners, words_filter

import clrope
from clrope.benchmark.workloads import select
from clrope.machine_load import OthersLoad, load_text
from clrope.tune.search import USUAL_TYPES


def tuned(device: clrope.DeviceInfo, types: Sequence[str]) -> int:
    """Print each saved winner's speed as a multiple of the default's; return 1 if one is slower beyond its error."""
    slower, others = 0, OthersLoad()
    print(f"winners of clrope tune on {device.name} ({device.platform}), times as fast as the default")
    for winner in compare_winners(device, types, time.time_ns() % (1 << 32)):
        slow = winner.ratio + 2 * winner.error < 1
        slower += slow
        claimed = "" if winner.claimed is None else f"claimed {winner.claimed:.2f}  "
        mark = "  SLOWER" if slow else ""
        print(f"{winner.ratio:6.3f} +-{winner.error:.3f}  {claimed}{winner.key}: {winner.variant}{mark}", flush=True)
    print(f"{slower or 'none'} slower than the default; {load_text(others.share())}")
    return 1 if slower else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", help="its name, see `clrope bench --list --workload all`")
    parser.add_argument("--tuned", action="store_true", help="winners of `clrope tune` next to the defaults")
    parser.add_argument("--type", action="append", help="of --tuned: storage types (repeatable)")
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
    if given.tuned == bool(given.workload):
        parser.error("a workload or --tuned is needed")
    if given.tuned:
        return tuned(device, given.type or USUAL_TYPES)
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
