"""Prints how many times what one thread of a CPU device does all of them do at once: multiplying, and copying.

Two processors of a virtual machine may be two threads of one core, which multiply no faster than one thread. They may
share a memory bus that one of them saturates. Both may change with time.

Example: python bench/threads.py --device pocl --seconds 60
"""

import argparse
import sys

import numpy as np
from tools.threads import compare_threads

import clrope


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    device = clrope.device(given.device)
    try:
        found = compare_threads(device, given.seconds)
    except clrope.RopeError as error:
        print(error, file=sys.stderr)
        return 1
    units = device.compute_units
    print(f"{device.name}: of {units} threads, so many times what one does; {len(found['copying'])} turns")
    for name, ratios in found.items():
        low, middle, high = np.percentile(ratios, (10, 50, 90))
        more = np.mean(np.array(ratios) > (1 + units) / 2)
        print(f"  {name:12} median {middle:.2f}, mostly {low:.2f} to {high:.2f}; above {(1 + units) / 2:g}: {more:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
