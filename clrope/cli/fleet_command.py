"""`clrope bench --scheduler` and `clrope verify --scheduler`: the same on every worker of a Dask cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..printable import one_line
from .exit_code import WRONG
from .output import print_line, print_message, print_table, progress_bar, write_text

if TYPE_CHECKING:
    from ..benchmark.measure import Options
    from ..benchmark.workloads import Workload
    from ..fleet import FleetResult
    from ..fleet.fleet_task import FleetTask

#: Lines printed of each kind of what is wrong.
_MOST_LINES = 20


def bench_fleet(
    scheduler: str, workloads: Sequence[Workload], options: Options, unusable: Mapping[str, object],
    json_file: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Run `clrope bench` on every worker. unusable: options that have no meaning there, with their values."""
    from ..fleet import BenchTask

    _refuse(unusable)
    if not quiet:
        print(f"seed {options.seed}; {len(workloads)} workloads", file=sys.stderr)
    _run(scheduler, BenchTask(tuple(w.name for w in workloads), options), json_file, quiet)


def verify_fleet(
    scheduler: str, suites: Sequence[str], fuzz: int | None, seed: int | None, text: str,
    unusable: Mapping[str, object], json_file: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Run `clrope verify` on every worker. unusable: options that have no meaning there, with their values."""
    import secrets

    from ..fleet import VerifyTask
    from ..suite.registry import cases_of, chosen_suites

    _refuse(unusable)
    seed = secrets.randbits(32) if seed is None else seed
    task = VerifyTask(tuple(suites), seed, text, fuzz)
    chosen = chosen_suites(task.chosen())
    if not any(True for each in chosen for _ in cases_of(each, text)):
        raise ConfigError(f"--filter: no case of {', '.join(s.name for s in chosen)} matches {text!r}")
    if not quiet:
        print(f"seed {seed}; suites: {', '.join(s.name for s in chosen)}", file=sys.stderr)
    _run(scheduler, task, json_file, quiet)


def _refuse(unusable: Mapping[str, object]) -> None:
    for name, value in unusable.items():
        if value:
            raise ConfigError(
                f"{name}: given together with --scheduler; workers use the device of their CLROPE_DEVICE, or all "
                "healthy ones, and this package's kernels; of files there is --json alone"
            )


def _run(scheduler: str, task: FleetTask, json_file: str | None, quiet: bool) -> None:
    import logging

    from ..fleet.fleet_run import FleetRun, connect

    # What it logs of broken connections is told in other words.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with progress_bar(quiet, drawn_by_thread=True) as bar, connect(scheduler) as client:
        drawn = bar.add_task("", total=None)

        def say(text: str) -> None:
            if not quiet:
                bar.console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)

        def progress(done: int, total: int) -> None:
            bar.update(drawn, completed=done, total=total or None)

        run = FleetRun(client, task, say, progress)
        try:
            result = run.run()
        except BaseException:
            # Interrupted: what was gathered is kept.
            if json_file not in (None, "-") and run.result().results:
                _write(run.result(), str(json_file))
            raise
    if json_file is not None:
        _write(result, json_file)
    if json_file != "-":
        _print(result)
    if not result.ok:
        raise SystemExit(WRONG)


def _write(result: FleetResult, json_file: str) -> None:
    write_text(json_file, json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")


def _print(result: FleetResult) -> None:
    rows = [[w.worker, w.host, w.device or "-", w.platform or "-", w.status] for w in result.workers]
    print_table("Workers", ["worker", "host", "device", "platform", "status"], rows)
    if result.what == "bench":
        print_table("Speed", ["workload", "worker", "device", "#GB/s", "#of ceiling", "#µs a call"], _speeds(result))
    else:
        summaries = [(r["worker"], line) for r in result.results for line in r["summary"]]
        print_table(
            "Results", ["worker", "device", "suite", "#passed", "#skipped", "#time"],
            [[worker, c["device"], c["suite"], f"{c['passed']}/{c['cases']}", c["skipped"], f"{c['seconds']:.1f} s"]
             for worker, c in summaries],
        )  # fmt: skip
    print()
    if result.bits is None:
        print("bits were not compared: no case has results of two devices")
    else:
        same = result.bits.compared - len(result.bits.different)
        print(f"bit-identical: {same}/{result.bits.compared} cases between {len(result.results)} devices")
        for line in result.bits.different[:_MOST_LINES]:
            print_line(f"bits differ: {line}")
    for worker in result.workers:
        if worker.status == "ok" and worker.reason:
            print_message(f"{worker.worker}, {worker.device}: {worker.reason}")
    for failure in result.failures:
        print_message(f"FAIL: {failure}")


def _speeds(result: FleetResult) -> list[list[Any]]:
    from ..benchmark.results import records

    rows = []
    for record in records(result.results):
        for label, device in record.result["devices"].items():
            rate, share, taken = record.rate(label), record.of_ceiling(label), record.own(label)
            texts = [f"{rate:.2f}" if rate and not record.workload["latency"] else "-",
                     f"{share:.2f}" if share and not record.workload["latency"] else "-",
                     f"{taken / 1e3:.1f}" if taken else "-"]  # fmt: skip
            rows.append([record.name, record.result["worker"], device["name"], *texts])
    return sorted(rows)
