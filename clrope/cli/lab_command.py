"""`clrope lab`: a kernel file of the user's through the conformance suites, with a diagnosis of what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, DeviceError, RopeError
from .exit_code import WRONG
from .lab_view import LabView, write_report
from .options import Devices, JsonFile, Quiet, Seed, flag, value
from .output import check_places, print_line, progress_bar

if TYPE_CHECKING:
    from ..lab.lab_kernel import LabFile
    from ..lab.lab_run import LabReport

#: Rounds of `--bench` where none are given.
_ROUNDS = 7
#: Options, and the ways of checking of which they are.
_ONLY_WITH = {
    "--against": ("--bench",), "--workload": ("--bench",), "--rounds": ("--bench",), "--waive": ("--races",),
    "--call": ("--npu", "--counts"),
}  # fmt: skip
#: Options of the suites, and the ways of checking that do not use them.
_NOT_WITH = {
    "--suite": ("--npu", "--counts", "--races", "--bench"), "--filter": ("--npu", "--counts", "--races", "--bench"),
    "--device": ("--counts", "--races"),
}  # fmt: skip


def _names_of_suites() -> list[str]:
    from ..lab.lab_draw import DRAWN
    from ..suite.registry import ALL, suite_names

    return [DRAWN, *suite_names(), ALL]


def _names_of_contracts() -> list[str]:
    from ..lab.contracts import BY_NAME

    return list(BY_NAME)


def _kinds() -> list[str]:
    from ..lab.new_kernel import kinds

    return list(kinds())


def check_kernel(
    path: Annotated[
        str,
        typer.Argument(metavar="KERNEL", help="OpenCL C file, or Kernel Tuner's T1 file (.json).", show_default=False),
    ] = "",
    contract: Annotated[
        str | None,
        value(
            "NAME",
            "What the arguments mean: a contract's name, or a .toml or .json file. Default: clrope.",
            autocompletion=_names_of_contracts,
        ),
    ] = None,
    kernel: Annotated[str, value("NAME", "Kernel function, where the file has several.")] = "",
    option: Annotated[list[str] | None, value("OPTION", "Compiler option, as --option=-DX=1 (repeatable).")] = None,
    device: Devices = None,
    suite: Annotated[
        list[str] | None,
        value(
            "NAME",
            "Suite, 'all', or 'drawn' for no other than the drawn cases (repeatable). Default: seed and modes.",
            autocompletion=_names_of_suites,
        ),
    ] = None,
    text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Run only the cases that contain each word of TEXT.")
    ] = "",
    races: Annotated[
        bool, flag("--races", "Small cases in Oclgrind: data races, accesses out of bounds, uninitialised values.")
    ] = False,
    waive: Annotated[
        list[str] | None, value("KIND[:LINE]", "Finding of --races that is intended, such as race:12 (repeatable).")
    ] = None,
    bench: Annotated[
        bool, flag("--bench", "Measure the speed, side by side with clrope's kernels and the device's copies.")
    ] = False,
    against: Annotated[
        list[str] | None, value("KERNEL", "Another kernel file for --bench, with lines of its own (repeatable).")
    ] = None,
    workload: Annotated[
        list[str] | None, value("NAME", "Workload of --bench, as `clrope bench --list` shows them (repeatable).")
    ] = None,
    rounds: Annotated[
        int | None, value("N", f"Rounds of --bench over all entries. Default: {_ROUNDS}.", min=1, max=1_000_000)
    ] = None,
    npu: Annotated[
        str | None, value("MACHINE", "Check against an NPU-like machine: a name, a .toml file, or cores=24,ub=192K,...")
    ] = None,
    counts: Annotated[
        bool, flag("--counts", "Count bytes and instructions in Oclgrind: traffic that a kernel could do without.")
    ] = False,
    call: Annotated[str | None, value("CASE", "Call of --npu and --counts, as `clrope verify` prints cases.")] = None,
    watching: Annotated[
        bool, flag("--watch", "Run again whenever the file, or one that it includes, is saved; say what changed.")
    ] = False,
    new: Annotated[str | None, value("NAME", "Write a commented kernel to start from to NAME.cl, and end.")] = None,
    like: Annotated[str, value("KIND", "What --new writes.", autocompletion=_kinds)] = "simple",
    seconds: Annotated[
        float, value("N", "Seconds without a result until a kernel counts as endless.", min=1, max=1e7)
    ] = 20.0,
    json_file: JsonFile = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Check a kernel file of your own: is it right, on every device, and if not, why.

    Cases are drawn for the kernel, so that everything that its arguments can express occurs together; published suites
    follow. Runs in child processes: a kernel that crashes or never ends harms nothing. Cases that the kernel's
    arguments cannot express are counted as such, never as right. Exit code 1 if a case is wrong, or if an argument was
    not varied; 2 if the file cannot be used.
    """
    if new is not None:
        if path:
            raise ConfigError(f"KERNEL: got {path!r} together with --new, which checks none")
        from ..lab.new_kernel import write_new

        print_line(f"{write_new(new, like)} is written; `clrope lab` checks it")
        return
    if not path:
        raise ConfigError("KERNEL: not given; a kernel file is needed, or --new NAME")
    _refuse_contradictions(
        {"--npu": npu is not None, "--counts": counts, "--races": races, "--bench": bench, "--watch": watching},
        {"--against": against, "--workload": workload, "--waive": waive, "--call": call is not None, "--suite": suite,
         "--filter": text, "--device": device, "--rounds": rounds},
    )  # fmt: skip
    if call is not None and not call.strip():
        raise ConfigError("--call: got an empty text, a case as `clrope verify` prints it is needed")
    check_places({"--json": json_file}, [path, *(against or ()), *([contract] if contract else ())])
    from ..lab import lab_kernel

    def load_it() -> LabFile:
        return lab_kernel.load_file(path, contract, options=option or [], kernel=kernel, selectors=device or [])

    if npu is not None:
        from .lab_npu import check_on_machine

        check_on_machine(load_it(), contract, npu, call or "", device or [], seed, seconds, json_file, quiet)
        return

    if counts:
        from .lab_counts import count_traffic

        count_traffic(load_it(), contract, call or "", seed or 0, json_file, quiet)
        return

    if races:
        from .lab_races import find_races

        find_races(load_it(), contract, waive or [], seed or 0, json_file, quiet)
        return

    if bench:
        from .lab_bench_command import bench_files

        others = [lab_kernel.load_file(other, selectors=device or []) for other in against or []]
        contracts = [contract, *(None for _ in others)]
        measured = [load_it(), *others]
        bench_files(measured, contracts, device or [], workload, rounds or _ROUNDS, seed, seconds, json_file, quiet)
        return

    def run_suites() -> LabReport:
        return _run_suites(load_it(), contract, suite, text, seed, seconds, device or [], json_file, quiet)

    if watching:
        from ..lab.included import included_files
        from .lab_watch import watch

        own = [contract] if contract is not None and contract.endswith((".toml", ".json")) else []

        def watched() -> list[str]:
            try:
                file = load_it()
            except RopeError:
                return [path, *own]  # which the error is in; the run says it
            included = included_files(file.path, file.source, [*file.contract.options, *file.options])
            return list(dict.fromkeys([path, *own, *map(str, (file.path, *included))]))

        watch(watched, run_suites)
    report = run_suites()
    if not report.ok:
        if report.verdict == "NOT SHOWN" or any(d.first_failure is not None for d in report.devices):
            raise SystemExit(WRONG)
        problems = [f"device: {d.target.problem}" for d in report.devices if d.target.problem]
        raise DeviceError("; ".join(problems) or f"suite: no case of {', '.join(report.suites)} was run and right")


def _refuse_contradictions(ways: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise `ConfigError` for two ways of checking at once, and for an option that the chosen way does not use."""
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[1]}: given together with {chosen[0]}; each is a run of its own")
    way = chosen[0] if chosen else ""
    for name, users in _ONLY_WITH.items():
        if options[name] and way not in users:
            raise ConfigError(f"{name}: given without {' or '.join(users)}")
    for name, others in _NOT_WITH.items():
        if options[name] and way in others:
            raise ConfigError(f"{name}: given together with {way}, which does not use it")


def _run_suites(
    file: LabFile, contract: str | None, suites: list[str] | None, text: str, seed: int | None, seconds: float,
    devices: list[str], json_file: str | None, quiet: bool,
) -> LabReport:  # fmt: skip
    from ..lab.lab_run import USUAL_SUITES, LabRun

    with progress_bar(quiet) as bar:
        view = LabView(bar, quiet, silent=json_file == "-")
        run = LabRun(
            file, contract, suites or USUAL_SUITES, text=text, seed=seed, silence=seconds,
            started=view.start, done=view.add,
        )  # fmt: skip
        view.begin(run)
        report = run.on_devices(devices)
    write_report(report, json_file)
    return report
