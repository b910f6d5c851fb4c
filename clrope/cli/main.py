"""The command `clrope`: its subcommands, and how it ends.

Exit codes: 0 all is well; 1 something failed (a case, a check, a device, a build); 2 the request makes no sense as it
was put (usage, a file, a configuration, a shape). Data goes to stdout, progress and errors to stderr.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import bench, devices, explain, run, show_config, tune, verify

app = typer.Typer(
    name="clrope",
    help="RoPE on OpenCL devices: check them, rotate tensors in files, look at configurations and kernels.",
    epilog="Exit codes: 0 all is well; 1 something failed; 2 the request cannot be carried out as put.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (devices, verify, run, bench, tune, show_config, explain):
    module.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"clrope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """RoPE on OpenCL devices."""


def main() -> None:
    """Run the command line and exit."""
    app()
