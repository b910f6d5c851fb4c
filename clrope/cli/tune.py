"""`clrope tune`: find the fastest variant of each kernel on a device, or show what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from ..select.records import TuningRecord, TuningReport


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(exit_with_code(_tune))


def _tune(
    device: Annotated[
        list[str] | None,
        typer.Option(help="A device by name or index (repeatable). Default: every healthy one but simulators."),
    ] = None,
    budget: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="About how long, for each device.")] = 300.0,
    dtype: Annotated[list[str] | None, typer.Option("--type", help="A storage type, as f16 (repeatable).")] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what was found earlier; try nothing.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Print every variant, not just winners.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="List the kernels' parameters.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of tuning.json.")] = False,
    write_defaults: Annotated[
        bool, typer.Option("--write-defaults", help="Print the defaults with the winners of tuning files in front.")
    ] = False,
    files: Annotated[list[str] | None, typer.Argument(help="Tuning files, for --write-defaults.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> bool:
    """Try every variant of the kernels in child processes, check each bit, time it, and remember the winners.

    Later calls use them. 'default' is the default's share of the fastest's speed. Exit code 1 if a device could not be
    tuned (with --show: if nothing is known of any).
    """
    from ..layout import DTYPES

    if write_defaults != bool(files):
        raise ConfigError("--write-defaults: needs the tuning.json files of some machines, and only it takes files")
    if write_defaults:
        from ..tune.write_defaults import dumps, merged_defaults

        print(dumps(merged_defaults(files or [])), end="")
        return True
    if parameters or schema:
        _print_static(schema, as_json)
        return True

    for name in dtype or ():
        if name not in DTYPES:
            raise ConfigError(f"--type: got {name!r}, allowed are {', '.join(DTYPES)}")
    targets, errors = _targets(device or [])
    tunings = []
    for target in targets:
        if show:
            tunings.append(_remembered(target, dtype))
        else:
            tunings.append(_with_progress(target, budget, dtype))
    well = bool(tunings) and not errors and all(t.records for t in tunings)
    if show:
        well = any(t.records for t in tunings)
    if as_json:
        from .output import print_json

        print_json(_report(targets, tunings, errors))
        return well
    for target, tuning in zip(targets, tunings, strict=True):
        _print(target, tuning, details)
    for line in errors:
        print(f"not tuned: {line}")
    return well


def _print_static(schema: bool, as_json: bool) -> None:
    from ..kernels.variant import parameter_table
    from ..select import database
    from .output import print_json, print_table

    names = ("kernel", "parameter", "values", "help")
    if schema:
        print_json(database.schema())
    elif as_json:
        print_json([dict(zip(names, row, strict=True)) for row in parameter_table()])
    else:
        print_table("", [*names], [[*row] for row in parameter_table()])


def _targets(names: list[str]) -> tuple[list[DeviceInfo], list[str]]:
    """Return the devices to tune, and why others are not."""
    from ..device import device, devices
    from ..errors import DeviceError

    if not names:
        found = devices()
        usable = [d for d in found if d.health.ok and not d.simulator]
        errors = (
            [] if usable else [d.describe_problem() for d in found if not d.health.ok] or ["no OpenCL device was found"]
        )
        return usable, errors
    targets: list[DeviceInfo] = []
    errors = []
    for name in names:
        try:
            target = device(name)
        except DeviceError as error:
            errors.append(str(error))
            continue
        if target not in targets:
            targets.append(target)
    return targets, errors


def _keys(target: DeviceInfo, types: list[str] | None) -> Any:
    from ..tune.search import all_keys

    return all_keys(target, types) if types else all_keys(target)


def _with_progress(target: DeviceInfo, budget: float, types: list[str] | None) -> TuningReport:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..tune.search import tune

    with Progress(
        TextColumn("tune {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False,
    ) as bar:  # fmt: skip
        task = bar.add_task(target.name, total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{target.name}: {what}", completed=done, total=total)

        return tune(target, budget, _keys(target, types), progress=progress)


def _remembered(target: DeviceInfo, types: list[str] | None) -> TuningReport:
    from ..select import database
    from ..select.records import TuningReport

    wanted = _keys(target, types)
    pairs = dict.fromkeys((p.dtype, p.pairing) for p in wanted)
    records = [r for dtype, pairing in pairs for r in database.known(target, dtype, pairing).records]
    known = {r.key for r in records}
    return TuningReport(target.key, records, [p for p in wanted if p not in known])


def _report(targets: list[DeviceInfo], tunings: list[TuningReport], errors: list[str]) -> dict[str, Any]:
    return {
        "schema": "clrope.tune/2",
        "devices": [
            {
                "device": tuning.device, "index": target.index,
                "records": [record.to_dict() for record in tuning.records],
                "left": [str(key) for key in tuning.left], "errors": tuning.errors,
            }
            for target, tuning in zip(targets, tunings, strict=True)
        ],
        "not_tuned": errors,
    }  # fmt: skip


def _print(target: DeviceInfo, tuning: TuningReport, details: bool) -> None:
    from .output import print_table

    print(f"{target}: {target.driver_version}")
    if details:
        for record in tuning.records:
            print(_title(record))
            print_table("", ["outcome", "#GB/s", "#of copy", "variant", "why"], _rows(record))
    elif tuning.records:
        heads = ["for", "#size", "#GB/s", "#of copy", "#default", "fastest variant", "#tried"]
        print_table("", heads, [_summary(target, record) for record in tuning.records])
        if failed := _failed(tuning):
            print_table("failed, and not used", ["outcome", "variant", "why"], failed)
    if tuning.left:
        print(f"not tuned: {'; '.join(map(str, tuning.left))}")
    for line in tuning.errors:
        print(f"error: {line}")


def _summary(target: DeviceInfo, record: TuningRecord) -> list[str]:
    """Return a tuning key, what was found for it, the default's share of that speed, and of how many variants."""
    from ..select.defaults import default_for
    from .output import bytes_text

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


def _failed(tuning: TuningReport) -> list[list[str]]:
    """Return what failed, once for all keys with the same reason."""
    rows = [[o.outcome, str(o.variant), o.reason] for r in tuning.records for o in r.results if o.broken]
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _title(record: TuningRecord) -> str:
    from .output import bytes_text

    ceiling = "" if record.ceiling_gbs is None else f", {_ceiling_name(record)} {record.ceiling_gbs:.3g} GB/s"
    check = "" if record.checked_against == "emulation" else f", checked against the {record.checked_against} kernel"
    return f"{record.key}, {bytes_text(record.nbytes)}{ceiling}{check}"


def _ceiling_name(record: TuningRecord) -> str:
    return "scaling" if record.key.in_place else "copy"


def _rows(record: TuningRecord) -> list[list[str]]:
    from ..select.records import TOLERANCE

    rows = []
    chosen = min((o.seconds or 0.0 for o in record.results if o.outcome == "ok"), default=0.0)
    tie = f"by less than {TOLERANCE[record.key.size] - 1:.0%} quicker: a tie, and the one above comes first"
    # What was chosen first, then the fastest, then what failed.
    for o in sorted(record.results, key=lambda o: (o.broken, o.outcome != "ok", o.seconds or 0.0)):
        why = o.reason or (tie if not o.broken and o.seconds is not None and o.seconds < chosen else "")
        rate = "-" if o.gbs is None else f"{o.gbs:.3g}"
        rows.append([o.outcome, rate, _share(o.gbs, record.ceiling_gbs), str(o.variant), why])
    return rows
