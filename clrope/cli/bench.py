"""`clrope bench`: measure speed against ceilings and peers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from ..device import DeviceInfo
from ..errors import ConfigError, DeviceError
from .exit_code import WRONG
from .options import Devices, JsonFile, Quiet, Scheduler, Seed, Types, checked_types, flag, healthy_devices, value
from .output import bytes_text, print_table, progress_bar, write_text
from .report_command import print_tables


def bench(
    device: Devices = None,
    types: Types = None,
    workload: Annotated[
        list[str] | None,
        value("NAME", "Group, family or pattern of names, see --list (repeatable). Default: standard."),
    ] = None,
    peer: Annotated[list[str] | None, value("NAME", "Peer to measure (repeatable). Default: all installed.")] = None,
    no_peers: Annotated[bool, flag("--no-peers", "Measure clrope and the ceilings only.")] = False,
    rounds: Annotated[int | None, value("N", "Rounds over all entries. Default: 9, and 60 for calls.", min=1)] = None,
    peer_rounds: Annotated[int, value("N", "Rounds that measure the peers, at most.", min=1)] = 9,
    repeats: Annotated[int, value("N", "Repeats of each workload, with new buffers.", min=1)] = 1,
    calls: Annotated[int, value("N", "Calls of an entry in a row, at most.", min=1)] = 5,
    kernel: Annotated[
        list[str] | None, value("FILE", "Kernel file of your own, measured as clrope's kernels are (repeatable).")
    ] = None,
    threads: Annotated[int, value("N", "Threads of each peer. 0: one for each usable CPU.", min=0)] = 0,
    seed: Seed = None,
    tiny: Annotated[bool, flag("--tiny", "Use short axes: a quick trial whose figures mean nothing.")] = False,
    processes: Annotated[bool, flag("--processes", "Also measure a process: its first call, its memory.")] = False,
    json_file: JsonFile = None,
    list_only: Annotated[bool, flag("--list", "List the chosen workloads and stop.")] = False,
    scheduler: Scheduler = None,
    quiet: Quiet = False,
) -> None:
    """Measure speed against ceilings and peers.

    The ceilings are the fastest copies on each device; the peers are other implementations. Every entry is checked
    before it is timed, and the entries of a workload are timed in turn. Exit code 1 if a result is wrong.
    """
    from ..benchmark.measure import Options, run
    from ..benchmark.results import text_of
    from ..benchmark.workloads import select

    wanted = checked_types(types)
    chosen = [w for w in select(workload or ()) if not wanted or w.dtype in wanted]
    if not chosen:
        raise ConfigError(f"--type: no chosen workload has {' or '.join(wanted)}; `clrope bench --list` shows them")
    if list_only:
        rows = [[w.name, " ".join(map(str, w.tensors)), bytes_text(w.bytes_moved)] for w in chosen]
        print_table("", ["workload", "tensors", "#moved"], rows)
        return
    seed = time.time_ns() % (1 << 32) if seed is None else seed
    options = Options(
        rounds=rounds or 9, call_rounds=rounds or 60, peer_rounds=peer_rounds, repeats=repeats, calls=calls,
        peers=tuple(peer or ()), with_peers=not no_peers, threads=threads,
        seed=seed, tiny=tiny, processes=processes,
    )  # fmt: skip
    if scheduler is not None:
        from .fleet_command import bench_fleet

        bench_fleet(scheduler, chosen, options, {"--device": device, "--kernel": kernel}, json_file, quiet)
        return
    devices = healthy_devices(device)
    others = _own_kernels(kernel or [], [w.name for w in chosen if not w.calls], devices, seed)
    options = replace(options, others=others)
    with progress_bar(quiet) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)
            bar.refresh()

        result = run(chosen, devices, options, progress)
    if json_file is not None:
        write_text(json_file, text_of(result))
    if json_file != "-":
        print_tables([result])
    failed = [e for w in result["workloads"] for e in w["entries"] if e["status"] in ("wrong", "error")]
    if any(e["kind"] == "clrope" or e["status"] == "wrong" for e in failed):
        raise SystemExit(WRONG)


def _own_kernels(files: list[str], workloads: list[str], devices: Sequence[DeviceInfo], seed: int) -> dict[str, Any]:
    """Return kernel files by name, each tried in a child process first, because it may crash or never end."""
    if not files:
        return {}
    from ..lab.lab_bench import bench_kernels, names_of
    from ..lab.lab_kernel import load_file

    loaded = [load_file(name) for name in files]
    for file in loaded:
        file.check()
    selectors = [d.index for d in devices]
    for tried in bench_kernels(
        loaded, [None] * len(loaded), selectors, workloads=workloads, rounds=1, seed=seed, tiny=True
    ):
        for name, reason in {**tried.ended, **({tried.target.name: tried.problem} if tried.problem else {})}.items():
            raise DeviceError(f"--kernel: {name} on {tried.target.name}: {reason}")
    return {name: file.kernel_object() for name, file in zip(names_of(loaded), loaded, strict=True)}
