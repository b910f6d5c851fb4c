"""`clrope bench`: measure speed against ceilings and peers."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..device import DeviceInfo
from ..device.info import usable_cpus
from ..device.select import ALIASES
from ..errors import ConfigError, DeviceError
from .exit_code import WRONG
from .options import Devices, JsonFile, Quiet, Scheduler, Seed, Types, checked_types, flag, healthy_devices, value
from .output import (
    bytes_text,
    check_folders,
    check_places,
    print_fields,
    print_line,
    print_message,
    print_table,
    write_text,
)
from .report_command import print_tables

if TYPE_CHECKING:
    from ..benchmark.measure import BenchRun, Options
    from ..benchmark.resume import Unfinished
    from ..benchmark.workloads import Workload
    from ..lab.lab_kernel import LabFile


#: The largest number of rounds, repeats, calls and threads.
_MOST = 1_000_000


def bench(
    device: Devices = None,
    types: Types = None,
    workload: Annotated[
        list[str] | None,
        value("NAME", "Group, family or pattern of names, see --list (repeatable). Default: standard."),
    ] = None,
    peer: Annotated[list[str] | None, value("NAME", "Peer to measure (repeatable). Default: all installed.")] = None,
    no_peers: Annotated[bool, flag("--no-peers", "Measure clrope and the ceilings only.")] = False,
    rounds: Annotated[
        int | None, value("N", "Rounds over all entries. Default: 9, and 60 for calls.", min=1, max=_MOST)
    ] = None,
    peer_rounds: Annotated[
        int | None, value("N", "Rounds that measure the peers, at most. Default: 9.", min=1, max=_MOST)
    ] = None,
    repeats: Annotated[
        int | None, value("N", "Repeats of each workload, with new buffers. Default: 1.", min=1, max=_MOST)
    ] = None,
    calls: Annotated[
        int | None, value("N", "Calls of an entry in a row, at most. Default: 5.", min=1, max=_MOST)
    ] = None,
    kernel: Annotated[
        list[str] | None, value("FILE", "Kernel file of your own, measured as clrope's kernels are (repeatable).")
    ] = None,
    threads: Annotated[
        int | None, value("N", "Threads of each peer. Default: 0, one for each usable CPU.", min=0, max=_MOST)
    ] = None,
    seed: Seed = None,
    tiny: Annotated[bool, flag("--tiny", "Use short axes: a quick trial whose figures mean nothing.")] = False,
    processes: Annotated[bool, flag("--processes", "Also measure a process: its first call, its memory.")] = False,
    no_clpeak: Annotated[
        bool, flag("--no-clpeak", "Do not run clpeak, which is run on each device if it is installed.")
    ] = False,
    json_file: JsonFile = None,
    resume: Annotated[
        str | None, value("FILE", "Continue an interrupted run from its file, with its options; it is completed there.")
    ] = None,
    t4: Annotated[str | None, value("DIR", "Write the results as Kernel Tuner's T4 files.")] = None,
    artifact: Annotated[
        str | None, value("DIR", "Write an artifact: how to repeat the run, its environment, every sample, checksums.")
    ] = None,
    html: Annotated[
        str | None, value("PAGE", "Write the page of the results here. Default: next to the file of --json.")
    ] = None,
    list_only: Annotated[bool, flag("--list", "List the chosen workloads and stop.")] = False,
    scheduler: Scheduler = None,
    quiet: Quiet = False,
) -> None:
    """Measure speed against ceilings and peers.

    The ceilings are the fastest copies on each device; the peers are other implementations. Every entry is checked
    before it is timed, and the entries of a workload are timed in turn. Ctrl-C keeps the workloads that are complete.
    Exit code 1 if a result is wrong.
    """
    from ..benchmark.measure import Options
    from ..benchmark.workloads import select

    if no_peers and peer:
        raise ConfigError(f"--peer: got {peer[0]!r} together with --no-peers")
    wanted = checked_types(types)
    chosen = [w for w in select(workload or ()) if not wanted or w.dtype in wanted]
    if not chosen:
        raise ConfigError(f"--type: no chosen workload has {' or '.join(wanted)}; `clrope bench --list` shows them")
    if list_only:
        rows = [[w.name, " ".join(map(str, w.tensors)), bytes_text(w.bytes_moved)] for w in chosen]
        print_table("", ["workload", "tensors", "#moved"], rows)
        return
    given: dict[str, Any] = {"rounds": rounds, "call_rounds": rounds, "peer_rounds": peer_rounds, "repeats": repeats,
                             "calls": calls, "threads": threads, "seed": seed, "tiny": tiny or None}  # fmt: skip
    unfinished = None
    if resume is not None:
        json_file = json_file or resume
        unfinished, options = _continued(
            resume, given | {"peers": [] if no_peers else sorted(peer) if peer else None,
                             "processes": processes or None, "samples": (artifact is not None) or None}
        )  # fmt: skip
        if workload or types:
            unfinished.check_workloads(chosen)
        chosen = list(unfinished.workloads)
    else:
        known = {name: number for name, number in given.items() if number is not None}
        options = Options(
            **{"seed": time.time_ns() % (1 << 32), **known}, peers=tuple(peer or ()), with_peers=not no_peers,
            processes=processes, samples=artifact is not None, clpeak=not (no_clpeak or tiny),
        )  # fmt: skip
    if scheduler is not None:
        from .fleet_command import bench_fleet

        local = {"--device": device, "--kernel": kernel, "--resume": resume, "--t4": t4, "--artifact": artifact,
                 "--html": html}  # fmt: skip
        bench_fleet(scheduler, chosen, options, local, json_file, quiet)
        return
    if html is not None and json_file in (None, "-"):
        raise ConfigError("--html: given without --json FILE, of which the page is made")
    if artifact is not None:
        from ..benchmark.artifact import check_folder

        check_folder(artifact)
    check_places({"--json": json_file, "--html": html}, kernel or ())
    check_folders(t4, artifact)
    devices = healthy_devices(device)
    if unfinished is not None:
        devices = unfinished.devices_of(devices, device)
    files = _own_kernels(kernel or [], [w.name for w in chosen if not w.calls], devices, options.seed)
    run = _prepared(chosen, devices, options, files, unfinished)
    if options.clpeak and not quiet and not unfinished:
        _tell_of_clpeak()
    _measured(run, chosen, json_file, quiet)
    result = run.result()
    named = workload or ["standard"] if unfinished is None else [w.name for w in chosen]
    # An alias stands for the same driver on other machines.
    selectors = [label if label in ALIASES else d.index for label, d in zip(run.devices, devices, strict=True)]
    _write_formats(result, t4, artifact, run.options, named, types, selectors, files)
    if json_file != "-":
        print_tables([result])
        print()
        _print_closing(result, json_file, _page(json_file, html))
    failed = [e for w in result["workloads"] for e in w["entries"] if e["status"] in ("wrong", "error")]
    if any(e["kind"] == "clrope" or e["status"] == "wrong" for e in failed):
        raise SystemExit(WRONG)


def _continued(resume: str, given: dict[str, Any]) -> tuple[Unfinished, Options]:
    """Return an interrupted run and its options; `ConfigError` if the user gave other ones."""
    from ..benchmark.resume import read_unfinished
    from ..portability.report_files import read_files

    if not resume:
        raise ConfigError("--resume: got an empty text, the file of an interrupted run is needed")
    unfinished = read_unfinished(resume)
    # Its records become part of tables and of the page.
    if unread := read_files([resume]).unread:
        raise ConfigError(f"--resume: {unread[0]}")
    options = unfinished.options
    if given["threads"] == 0:
        given["threads"] = usable_cpus()
    if given["peer_rounds"] is not None:
        given["peer_rounds"] = min(given["peer_rounds"], options.rounds)
    unfinished.check_options(given)
    return unfinished, options


def _prepared(
    chosen: Sequence[Workload], devices: Sequence[DeviceInfo], options: Options, files: dict[str, LabFile],
    unfinished: Unfinished | None,
) -> BenchRun:  # fmt: skip
    from dataclasses import replace

    from ..benchmark.measure import BenchRun

    options = replace(
        options,
        others={name: file.kernel_object() for name, file in files.items()},
        sources={f"lab:{n}": hashlib.sha256(file.source.encode()).hexdigest()[:16] for n, file in files.items()},
    )
    if unfinished is None:
        return BenchRun(chosen, devices, options)
    if sorted(files) != sorted(unfinished.kernel_files):
        named = ", ".join(unfinished.kernel_files) or "none"
        raise ConfigError(f"--kernel: got {', '.join(files) or 'none'}, {unfinished.where} was begun with {named}")
    run = BenchRun(chosen, devices, options, unfinished.result)
    unfinished.check_run(run)
    return run


def _tell_of_clpeak() -> None:
    from ..benchmark.clpeak import clpeak_version

    if clpeak_version() is None:
        text = "clpeak is not installed: no independent ceiling in the result (`apt-get install clpeak`)"
        print(f"clrope: {text}", file=sys.stderr)


def _measured(run: BenchRun, chosen: Sequence[Workload], json_file: str | None, quiet: bool) -> None:
    """Measure; whatever ends it, what is complete is in the file."""
    from .live_table import LiveTable

    def keep() -> None:
        if in_steps:
            _keep(run.result(), str(json_file))

    in_steps = json_file not in (None, "-") and (not os.path.exists(str(json_file)) or os.path.isfile(str(json_file)))
    try:
        with LiveTable(run, chosen, quiet, keep) as table:
            run.measure_all(table)
    except BaseException:
        # The terminal may be gone.
        with suppress(OSError):
            _tell_what_is_kept(run, json_file, in_steps)
        raise
    if json_file is not None:
        _keep(run.result(), json_file)


def _keep(result: dict[str, Any], where: str) -> None:
    """Write the file of a result."""
    from ..benchmark.results import text_of

    write_text(where, text_of(result))


def _tell_what_is_kept(run: BenchRun, json_file: str | None, in_steps: bool) -> None:
    """Print what an interrupted run has measured, and how to go on."""
    result = run.result()
    if not run.records:
        text = "no workload was complete, nothing is kept"
        print(f"clrope: {text}", file=sys.stderr)
        return
    if json_file is not None and not in_steps:
        _keep(result, json_file)
    if json_file != "-":
        print_tables([result])
        print()
        _print_closing(result, json_file)
    text = f"not measured: {', '.join(run.missing)}"
    more = f"; clrope bench --resume {json_file} goes on" if in_steps else ""
    print_line(f"clrope: {text}{more}", file=sys.stderr)


def _print_closing(result: dict[str, Any], json_file: str | None, page: str | None = None) -> None:
    from ..benchmark.closing import closing_lines

    print_fields(closing_lines(result, json_file, page))


def _page(json_file: str | None, html: str | None) -> str | None:
    """Write the page of a result file and return its path; None without a file, or without what the page needs."""
    from ..portability.page import is_page, write_page
    from ..portability.report_files import read_files

    if json_file is None:
        return None
    place = Path(json_file).with_suffix(".html") if html is None else Path(html)
    if html is None and (str(place) == json_file or (place.exists() and not is_page(place))):
        return None
    try:
        return str(write_page(read_files([json_file]), place))
    except ConfigError as error:
        if html is not None:
            raise
        print_message(f"clrope: no page: {error}", file=sys.stderr)
        return None


def _write_formats(
    result: dict[str, Any], t4: str | None, artifact: str | None, options: Options, workloads: list[str],
    types: list[str] | None, devices: Sequence[str], files: dict[str, LabFile],
) -> None:  # fmt: skip
    from ..benchmark.artifact import installed_packages, write_artifact
    from ..benchmark.kernel_tuner_files import of_bench, t4_metadata, write_t4

    if t4 is not None:
        metadata = t4_metadata(result["environment"], result["devices"], installed_packages())
        write_t4(of_bench(result), metadata, t4)
    if artifact is not None:
        command = ["clrope", "bench", *_words("--workload", workloads), *_words("--type", types or [])]
        command += _words("--device", devices)
        command += ["--no-peers"] if not options.with_peers else _words("--peer", options.peers)
        numbers = {"rounds": options.rounds, "peer-rounds": options.peer_rounds, "repeats": options.repeats,
                   "calls": options.calls, "threads": options.threads, "seed": options.seed}  # fmt: skip
        command += [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
        command += [f"--{name}" for name in ("tiny", "processes") if getattr(options, name)]
        command += _words("--kernel", [f"kernels/{name}" for name in files])
        write_artifact(result, artifact, command, {name: file.source for name, file in files.items()})


def _words(option: str, values: Sequence[str]) -> list[str]:
    return [word for text in values for word in (option, text)]


def _own_kernels(
    names: list[str], workloads: list[str], devices: Sequence[DeviceInfo], seed: int
) -> dict[str, LabFile]:
    """Return kernel files by name, each tried in a child process first, because it may crash or never end."""
    if not names:
        return {}
    from ..lab.lab_bench import bench_kernels, names_of
    from ..lab.lab_kernel import load_file

    loaded = [load_file(name, selectors=[d.index for d in devices]) for name in names]
    for file in loaded:
        file.check_before_run()
    selectors = [d.index for d in devices]
    for tried in bench_kernels(
        loaded, [None] * len(loaded), selectors, workloads=workloads, rounds=1, seed=seed, tiny=True
    ):
        for name, reason in {**tried.ended, **({tried.target.name: tried.problem} if tried.problem else {})}.items():
            raise DeviceError(f"--kernel: {name} on {tried.target.name}: {reason}")
    return dict(zip(names_of(loaded), loaded, strict=True))
