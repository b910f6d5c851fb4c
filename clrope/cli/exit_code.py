"""How a command ends: errors of this package become one message on stderr and an exit code, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

from ..errors import BuildError, DeviceError, RopeError

FAILED = 1
MISUSED = 2

P = ParamSpec("P")


def exit_with_code(command: Callable[P, bool]) -> Callable[P, None]:
    """Turn a command that says whether all is well into one that exits with the right code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            well = command(*args, **kwargs)
        except RopeError as error:
            typer.echo(f"clrope: {error}", err=True)
            # A device or a kernel that does not do its work is a failure; all else is in what was asked for.
            raise typer.Exit(FAILED if isinstance(error, (DeviceError, BuildError)) else MISUSED) from error
        if not well:
            raise typer.Exit(FAILED)

    # Typer reads the options from the wrapped function, but not its result.
    return wrapped
