"""guarded: errors become messages and exit codes. Light, for commands that must start at once."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from . import INTERRUPTED


@contextmanager
def guarded(debug: bool = False) -> Iterator[None]:
    """Whatever goes wrong inside is shown, and ends the command with its exit code.

    Args:
        debug: show the traceback as well.

    Raises:
        Exit: with code 1, or 130 after Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.BadParameter, BrokenPipeError):
        raise
    except Exception as error:
        from .console import Screen

        if debug:
            traceback.print_exc()
        Screen().error(error)
        raise typer.Exit(1) from None
