"""Measures the workloads of the documents, or the given patterns, and keeps the results in bench/results."""

import argparse
import sys
import time
from itertools import groupby
from pathlib import Path

from tools.store import keep

import clrope
from clrope.benchmark.measure import Options, run
from clrope.benchmark.workloads import Workload, select

RESULTS = Path(__file__).parent / "results"


def part(workload: Workload) -> str:
    kind = workload.family.partition("-")[0]
    return kind if kind in ("size", "tokens") else f"{workload.family}-{workload.dtype}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="workloads, or 'processes'; default: all of the documents")
    parser.add_argument("--device", action="append", default=[], help="default: every healthy one but simulators")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer-rounds", type=int, default=9, help="of these, the rounds with peers")
    parser.add_argument("--repeats", type=int, default=1, help="of each workload, from buffers newly made")
    parser.add_argument("--call-rounds", type=int, default=60, help="rounds of the workloads named calls")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a trial; nothing is kept")
    given = parser.parse_args()
    devices = [clrope.device(name) for name in given.device] or [
        d for d in clrope.devices() if d.health.ok and not d.simulator
    ]
    if not devices:
        print("no healthy OpenCL device; `clrope devices` says why", file=sys.stderr)
        return 1
    patterns = [p for p in given.patterns if p != "processes"]
    if not given.patterns:
        patterns = ["standard", "calls", "sizes"]
    chosen = sorted(select(patterns), key=part) if patterns else []
    seed = time.time_ns() % (1 << 32)
    parts = [(name, list(members)) for name, members in groupby(chosen, key=part)]
    if "processes" in given.patterns or not given.patterns:
        parts.append(("processes", []))
    for number, (name, members) in enumerate(parts, 1):
        print(f"{number}/{len(parts)} {name}: {len(members)} workloads", file=sys.stderr, flush=True)
        options = Options(
            rounds=given.rounds, peer_rounds=given.peer_rounds, repeats=given.repeats,
            call_rounds=given.call_rounds, calls=given.calls, seed=seed, tiny=given.tiny, processes=name == "processes",
        )  # fmt: skip
        result = run(members, devices, options)
        for path in () if given.tiny else keep(RESULTS, result):
            print(f"  {path.name}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
