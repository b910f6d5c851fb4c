"""`clrope tune`: find the fastest spelling of each kernel on a device, or show what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .exit_code import exit_with_code

if TYPE_CHECKING:
    from ..device import DeviceInfo
    from ..program.outcome import Record, Tuning


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(exit_with_code(_tune))


def _tune(
    device: Annotated[
        list[str] | None,
        typer.Option(help="A device by name or index (repeatable). Default: every healthy one but simulators."),
    ] = None,
    budget: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="About how long, for each device.")] = 300.0,
    dtype: Annotated[list[str] | None, typer.Option("--type", help="f16, bf16, f32 or f64 (repeatable).")] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what was found earlier; try nothing.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Print every spelling, not just winners.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> bool:
    """Try every spelling of the kernels in child processes, check each bit it gives, time it, and remember the winners.

    Later calls use them. 'default' is the share of the fastest's speed that there is without tuning. Exit code 1 if a
    device could not be tuned (with --show: if nothing is known of any).
    """
    from ..layout import DTYPES

    for name in dtype or ():
        if name not in DTYPES:
            raise ConfigError(f"--type: got {name!r}, allowed are {', '.join(DTYPES)}")
    targets, troubles = _targets(device or [])
    tunings = []
    for target in targets:
        if show:
            tunings.append(_remembered(target, dtype))
        else:
            tunings.append(_with_progress(target, budget, dtype))
    well = bool(tunings) and not troubles and all(t.records for t in tunings)
    if show:
        well = any(t.records for t in tunings)
    if as_json:
        from .output import print_json

        print_json(_report(targets, tunings, troubles))
        return well
    for target, tuning in zip(targets, tunings, strict=True):
        _print(target, tuning, details)
    for line in troubles:
        print(f"not tuned: {line}")
    return well


def _targets(names: list[str]) -> tuple[list[DeviceInfo], list[str]]:
    """Return the devices to tune, and why others are not."""
    from ..device import device, devices
    from ..errors import DeviceError

    if not names:
        found = devices()
        usable = [d for d in found if d.health.ok and not d.simulator]
        problems = [d.describe_problem() for d in found if not d.health.ok] or ["no OpenCL device was found"]
        return usable, [] if usable else problems
    targets: list[DeviceInfo] = []
    troubles = []
    for name in names:
        try:
            target = device(name)
        except DeviceError as error:
            troubles.append(str(error))
            continue
        if target not in targets:
            targets.append(target)
    return targets, troubles


def _purposes(target: DeviceInfo, types: list[str] | None) -> Any:
    from ..program.tuner import all_purposes

    return [p for p in all_purposes(target) if not types or p.dtype in types]


def _with_progress(target: DeviceInfo, budget: float, types: list[str] | None) -> Tuning:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..program.tuner import tune

    with Progress(
        TextColumn("tune {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False,
    ) as bar:  # fmt: skip
        task = bar.add_task(target.name, total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{target.name}: {what}", completed=done, total=total)

        return tune(target, budget, _purposes(target, types), progress=progress)


def _remembered(target: DeviceInfo, types: list[str] | None) -> Tuning:
    from ..program import tuning
    from ..program.outcome import Tuning

    wanted = _purposes(target, types)
    pairs = dict.fromkeys((p.dtype, p.pairing) for p in wanted)
    records = [r for dtype, pairing in pairs for r in tuning.known(target, dtype, pairing).records]
    known = {r.purpose for r in records}
    return Tuning(target.key, records, [p for p in wanted if p not in known])


def _report(targets: list[DeviceInfo], tunings: list[Tuning], troubles: list[str]) -> dict[str, Any]:
    return {
        "schema": "clrope.tune/1",
        "devices": [
            {
                "device": tuning.device, "index": target.index,
                "records": [record.to_dict() for record in tuning.records],
                "left": [str(purpose) for purpose in tuning.left], "trouble": tuning.trouble,
            }
            for target, tuning in zip(targets, tunings, strict=True)
        ],
        "not_tuned": troubles,
    }  # fmt: skip


def _print(target: DeviceInfo, tuning: Tuning, details: bool) -> None:
    from .output import print_table

    print(f"{target}: {target.driver_version}")
    if details:
        for record in tuning.records:
            print(_title(record))
            print_table("", ["outcome", "#GB/s", "#of copy", "spelling", "why"], _rows(record))
    elif tuning.records:
        heads = ["for", "#size", "#GB/s", "#of copy", "#default", "fastest spelling", "#tried"]
        print_table("", heads, [_summary(target, record) for record in tuning.records])
        if failed := _failed(tuning):
            print_table("failed, and not used", ["outcome", "spelling", "why"], failed)
    if tuning.left:
        print(f"not tuned: {'; '.join(map(str, tuning.left))}")
    for line in tuning.trouble:
        print(f"trouble: {line}")


def _summary(target: DeviceInfo, record: Record) -> list[str]:
    """Return a purpose, what was found for it, the default's share of that speed, and of how many spellings."""
    from ..program.defaults import default_for
    from .output import bytes_text

    first = [str(record.purpose), bytes_text(record.nbytes)]
    winner = next((o for o in record.outcomes if o.outcome == "ok"), None)
    if winner is None or winner.gbs is None:
        return [*first, "-", "-", "-", "none works", str(len(record.outcomes))]
    default = default_for(target, record.purpose)
    rate = next((o.gbs for o in record.outcomes if o.variant == default and not o.broken), None)
    return [
        *first, f"{winner.gbs:.3g}", _share(winner.gbs, record.ceiling_gbs), _share(rate, winner.gbs),
        str(winner.variant), str(len(record.outcomes)),
    ]  # fmt: skip


def _share(rate: float | None, whole: float | None) -> str:
    return "-" if rate is None or not whole else f"{rate / whole:.2f}"


def _failed(tuning: Tuning) -> list[list[str]]:
    """Return what failed, once for all purposes of one cause."""
    rows = [[o.outcome, str(o.variant), o.reason] for r in tuning.records for o in r.outcomes if o.broken]
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _title(record: Record) -> str:
    from .output import bytes_text

    ceiling = "" if record.ceiling_gbs is None else f", {_ceiling_name(record)} {record.ceiling_gbs:.3g} GB/s"
    judge = "" if record.judged_by == "emulation" else f", judged by the {record.judged_by} kernel"
    return f"{record.purpose}, {bytes_text(record.nbytes)}{ceiling}{judge}"


def _ceiling_name(record: Record) -> str:
    return "scaling" if record.purpose.in_place else "copy"


def _rows(record: Record) -> list[list[str]]:
    from ..program.outcome import TOLERANCE

    rows = []
    chosen = min((o.seconds or 0.0 for o in record.outcomes if o.outcome == "ok"), default=0.0)
    tie = f"by less than {TOLERANCE[record.purpose.size] - 1:.0%} quicker: a tie, and the one above comes first"
    # What was chosen first, then the fastest, then what failed.
    for o in sorted(record.outcomes, key=lambda o: (o.broken, o.outcome != "ok", o.seconds or 0.0)):
        why = o.reason or (tie if not o.broken and o.seconds is not None and o.seconds < chosen else "")
        rate = "-" if o.gbs is None else f"{o.gbs:.3g}"
        rows.append([o.outcome, rate, _share(o.gbs, record.ceiling_gbs), str(o.variant), why])
    return rows
