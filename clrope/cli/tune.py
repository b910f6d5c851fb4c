"""`clrope tune`: find the fastest variant of each kernel on a device, or show what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any

import typer

from ..device import DeviceInfo, device, devices
from ..errors import ConfigError, DeviceError
from ..kernels.variant import parameter_table
from ..machine_load import BUSY, load_text
from ..select import database
from ..select.defaults import default_for
from ..select.records import TuningKey, TuningRecord
from ..tune.winners import TOLERANCE, TuningReport
from .exit_code import UNUSABLE, WRONG
from .options import AsJson, Devices, Quiet, Seed, Types, checked_types, flag, value
from .output import bytes_text, check_folders, print_json, print_line, print_message, print_table, progress_bar


def tune_devices(
    names: Devices = None,
    types: Types = None,
    budget: Annotated[float, value("SECONDS", "Time for each device, about.", min=1.0, max=1e7)] = 300.0,
    show: Annotated[bool, flag("--show", "Show what earlier runs found; try nothing.")] = False,
    details: Annotated[bool, flag("--details", "Print every variant, not only the fastest.")] = False,
    parameters: Annotated[bool, flag("--parameters", "List the parameters of the kernels.")] = False,
    schema: Annotated[bool, flag("--schema", "Print the JSON schema of tuning.json.")] = False,
    forget: Annotated[
        bool, flag("--forget", "Forget what was found for the devices of --device, or for all, and try nothing.")
    ] = False,
    write_defaults: Annotated[
        bool, flag("--write-defaults", "Print new defaults, with the winners of tuning files in front.")
    ] = False,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Tuning files for --write-defaults.")
    ] = None,
    kernel: Annotated[
        str | None,
        value("FILE", "Tune a kernel file of your own: the parameters of its lines `// lab: tune NAME = VALUES`."),
    ] = None,
    contract: Annotated[str | None, value("NAME", "Contract of --kernel, as for `clrope lab`.")] = None,
    workload: Annotated[
        list[str] | None, value("NAME", "Workload of --kernel, as `clrope bench --list` shows them (repeatable).")
    ] = None,
    seed: Seed = None,
    t4: Annotated[str | None, value("DIR", "Write all that was tried as Kernel Tuner's T4 files.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the fastest variant of each kernel, or the best parameters of a kernel file of your own.

    Every variant runs in a child process; its bits are checked, and its time is taken. Later calls use the winners: the
    defaults, and what was faster than them beyond doubt when both were compared again in a fresh process. The column
    'default' is the share of the winner's speed that the default variant has. Default storage types: f32, f16, bf16,
    f64. Exit code 2 if a device cannot be used, 1 if nothing was found for a device.
    """
    for name, given in (("--contract", contract), ("--workload", workload), ("--seed", seed)):
        if given is not None and kernel is None:
            raise ConfigError(f"{name}: given without --kernel")
    check_folders(t4)
    if kernel is not None:
        for name, other in (("--show", show), ("--details", details), ("--parameters", parameters), ("--type", types),
                            ("--schema", schema), ("--forget", forget), ("--write-defaults", write_defaults),
                            ("FILE", files)):  # fmt: skip
            if other:
                raise ConfigError(f"{name}: given together with --kernel, which does not use it")
        from .lab_tune_command import tune_kernel

        drawn = time.time_ns() % (1 << 32) if seed is None else seed
        tune_kernel(kernel, contract, names or [], workload or [], budget, drawn, as_json, quiet, t4)
        return
    if write_defaults and not files:
        raise ConfigError("FILE: none given, --write-defaults needs the tuning.json of one machine or more")
    if files and not write_defaults:
        raise ConfigError(f"FILE: got {files[0]!r}, allowed with --write-defaults only")
    if write_defaults:
        from ..tune.write_defaults import dumps, merged_defaults

        print(dumps(merged_defaults(files or [])), end="")
        return
    if parameters or schema:
        _print_static(schema, as_json)
        return

    if forget and (show or types):
        raise ConfigError(f"--forget: given together with {'--show' if show else '--type'}, which it does not use")
    if forget:
        _forget(names or [], as_json)
        return

    wanted = checked_types(types)
    targets, errors = _targets(names or [])
    tunings = [_remembered(t, wanted) if show else _tuned(t, budget, wanted, quiet) for t in targets]
    if t4 is not None:
        from ..benchmark.artifact import installed_packages
        from ..benchmark.kernel_tuner_files import metadata_here, of_tuning, write_t4

        problems = of_tuning(_report(targets, tunings, errors), [str(target) for target in targets])
        write_t4(problems, metadata_here(targets, installed_packages()), t4)
    if as_json:
        print_json(_report(targets, tunings, errors))
        for line in errors:
            print_message(f"clrope: not tuned: {line}", file=sys.stderr)
    else:
        for target, tuning in zip(targets, tunings, strict=True):
            _print(target, tuning, details)
            if not show:
                _print_summary(target, tuning)
        for line in errors:
            print_message(f"not tuned: {line}")
    if errors or not targets:
        raise SystemExit(UNUSABLE)
    found = [bool(t.records) for t in tunings]
    if not (any(found) if show else all(found)):
        raise SystemExit(WRONG)


def _print_static(schema: bool, as_json: bool) -> None:
    names = ("kernel", "parameter", "values", "help")
    if schema:
        print_json(database.schema())
    elif as_json:
        print_json([dict(zip(names, row, strict=True)) for row in parameter_table()])
    else:
        print_table("", names, parameter_table())


def _targets(names: Sequence[str]) -> tuple[list[DeviceInfo], list[str]]:
    """Return the devices to tune, and why others are not."""
    if not names:
        found = devices()
        usable = [d for d in found if d.health.ok and not d.simulator]
        reasons = [d.describe_problem() for d in found if not d.health.ok] or ["no OpenCL device was found"]
        return usable, [] if usable else reasons
    targets: list[DeviceInfo] = []
    errors = []
    for name in names:
        try:
            targets.append(device(name))
        except DeviceError as error:
            errors.append(str(error))
    return list(dict.fromkeys(targets)), errors


def _keys(target: DeviceInfo, types: Sequence[str]) -> list[TuningKey]:
    from ..tune.search import USUAL_TYPES, all_keys

    return all_keys(target, types or USUAL_TYPES)


def _tuned(target: DeviceInfo, budget: float, types: Sequence[str], quiet: bool) -> TuningReport:
    from ..tune.search import tune

    with progress_bar(quiet, drawn_by_thread=True) as bar:
        task = bar.add_task(target.name, total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{target.name}: {what}", completed=done, total=total)

        return tune(target, budget, _keys(target, types), progress=progress)


def _remembered(target: DeviceInfo, types: Sequence[str]) -> TuningReport:
    wanted = _keys(target, types)
    pairs = dict.fromkeys((p.dtype, p.pairing) for p in wanted)
    records = [r for dtype, pairing in pairs for r in database.known(target, dtype, pairing).records]
    known = {r.key for r in records}
    return TuningReport(target.key, records, [p for p in wanted if p not in known])


def _report(targets: list[DeviceInfo], tunings: list[TuningReport], errors: list[str]) -> dict[str, Any]:
    return {
        "schema": "clrope.tune/2",
        "devices": [
            {"device": tuning.device, "index": target.index, "records": [r.to_dict() for r in tuning.records],
             "left": [str(key) for key in tuning.left], "errors": tuning.errors,
             "changed": [str(key) for key in tuning.changed], "in_doubt": [str(key) for key in tuning.doubtful],
             "busy": tuning.busy}
            for target, tuning in zip(targets, tunings, strict=True)
        ],
        "not_tuned": errors,
    }  # fmt: skip


def _print(target: DeviceInfo, tuning: TuningReport, details: bool) -> None:
    print_line(f"{target}: {target.driver_version}")
    if details:
        for record in tuning.records:
            print_table(_title(record), ["outcome", "#GB/s", "#of copy", "variant", "why"], _rows(record))
    elif tuning.records:
        heads = ["for", "#size", "#GB/s", "#of copy", "#default", "variant used", "#tried"]
        print_table("", heads, [_summary(target, record) for record in tuning.records])
        if failed := _failed(tuning):
            print_table("Failed, not used", ["outcome", "variant", "why"], failed)
    if left := [str(key) for key in tuning.left]:
        shown = left if details or len(left) < 4 else [left[0], f"and {len(left) - 1} more (--details lists them)"]
        print(f"not tuned: {'; '.join(shown)}")
    for line in tuning.errors:
        print(f"error: {line}")


def _print_summary(target: DeviceInfo, tuning: TuningReport) -> None:
    """Print what changed, how busy the machine was, where the results are, and how to undo it."""
    gains = [record.gain for record in tuning.records if record.gain is not None]
    faster = f", at {median(gains):.2f} times its speed (median)" if gains else ""
    lines = [f"{len(gains)} of {len(tuning.records)} use another variant than the default{faster}; "
             f"{len(tuning.changed)} changed in this run"]  # fmt: skip
    if tuning.doubtful:
        why = "--details says why" if (tuning.busy or 0.0) <= BUSY else "tune again when the machine is idle"
        lines.append(
            f"{len(tuning.doubtful)} keep what they had, because another one is not faster beyond doubt: {why}"
        )
    lines.append(load_text(tuning.busy))
    lines.append(f"written: {database.place()}; to undo it: clrope tune --forget --device {target.index}")
    for line in filter(None, lines):
        print_line(line)


def _forget(names: Sequence[str], as_json: bool) -> None:
    """Forget the records of devices, or all; say how many there were."""
    devices = [device(name) for name in names]
    counts = {str(d): database.forget(d) for d in devices} if names else {"all devices": database.forget()}
    if as_json:
        print_json({"schema": "clrope.tune.forget/1", "file": str(database.place()), "forgotten": counts})
        return
    for name, count in counts.items():
        print_line(f"{name}: {count} record{'' if count == 1 else 's'} forgotten; the defaults are used again")
    print_line(f"file: {database.place()}")


def _summary(target: DeviceInfo, record: TuningRecord) -> list[str]:
    """Return a tuning key, what was found for it, the default's share of that speed, and of how many variants."""
    first = [str(record.key), bytes_text(record.nbytes)]
    winner = next((o for o in record.results if o.outcome == "ok"), None)
    if winner is None or winner.gbs is None:
        return [*first, "-", "-", "-", "none works", str(len(record.results))]
    default = default_for(target, record.key)
    rate = next((o.gbs for o in record.results if o.variant == default and not o.broken), None)
    return [
        *first, f"{winner.gbs:.3g}", _share(winner.gbs, record.ceiling_gbs), _share(rate, winner.gbs),
        str(winner.variant), str(len(record.results)),
    ]  # fmt: skip


def _share(rate: float | None, whole: float | None) -> str:
    return "-" if rate is None or not whole else f"{rate / whole:.2f}"


def _failed(tuning: TuningReport) -> list[tuple[str, ...]]:
    """Return what failed, once for all keys with the same reason."""
    rows = ((o.outcome, str(o.variant), o.reason) for r in tuning.records for o in r.results if o.broken)
    return list(dict.fromkeys(rows))


def _title(record: TuningRecord) -> str:
    name = "scaling" if record.key.in_place else "copy"
    ceiling = "" if record.ceiling_gbs is None else f", {name} {record.ceiling_gbs:.3g} GB/s"
    check = "" if record.checked_against == "emulation" else f", checked against the {record.checked_against} kernel"
    return f"{record.key}, {bytes_text(record.nbytes)}{ceiling}{check}"


def _rows(record: TuningRecord) -> list[list[str]]:
    rows = []
    chosen = min((o.seconds or 0.0 for o in record.results if o.outcome == "ok"), default=0.0)
    tie = f"by less than {TOLERANCE[record.key.size] - 1:.0%} quicker: a tie, and the one above comes first"
    # What was chosen first, then the fastest, then what failed.
    for o in sorted(record.results, key=lambda o: (o.broken, o.outcome != "ok", o.seconds or 0.0)):
        why = o.reason or (tie if not o.broken and o.seconds is not None and o.seconds < chosen else "")
        rate = "-" if o.gbs is None else f"{o.gbs:.3g}"
        rows.append([o.outcome, rate, _share(o.gbs, record.ceiling_gbs), str(o.variant), why])
    return rows
