"""The command `clrope`: its subcommands. Data goes to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .devices import list_devices
from .exit_code import caught_signals, ending
from .explain import explain
from .identify_files import identify_files
from .lab_command import check_kernel
from .report_command import report
from .run import rotate_file
from .show_config import show_config
from .streams import set_up_streams
from .tune import tune_devices
from .verify import verify_devices

COMMANDS: dict[str, Callable[..., None]] = {
    "devices": list_devices,
    "verify": verify_devices,
    "run": rotate_file,
    "bench": bench,
    "report": report,
    "tune": tune_devices,
    "lab": check_kernel,
    "config": show_config,
    "explain": explain,
    "identify": identify_files,
}

app = typer.Typer(
    name="clrope",
    epilog="""Exit codes: 0 all is right; 1 checked and wrong; 2 bad input, or no usable device; 130 interrupted;
    143 ended by SIGTERM.

    Shell completion: `clrope --install-completion` sets it up for your shell, `clrope --show-completion` prints the
    script.

    `clrope COMMAND --help` describes a command.""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "color": False},
)
for name, command in COMMANDS.items():
    app.command(name)(ending()(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"clrope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Rotary position embedding (RoPE) on OpenCL devices."""


def main() -> None:
    """Run the command line and exit."""
    set_up_streams()
    with ending(), caught_signals():
        app(prog_name="clrope")
