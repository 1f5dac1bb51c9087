"""Screen: what people see. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from ..errors import ArchzooError
from . import INTERRUPTED

PIPE_WIDTH = 120
"""Columns of a table that goes into a file or a pipe."""

LoadProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes to do)."""


class Screen:
    """The terminal of one command, or of one rank of it.

    Only the leading rank speaks; the others show nothing but errors.

    Args:
        ranks: of the models that the command runs, which torchrun's processes share; None for all
            processes there are. A command of one rank speaks wherever it is run.

    Attributes:
        leads: whether this process speaks.
        out: results.
        err: progress, warnings, errors.
    """

    def __init__(self, ranks: int | None = 1) -> None:
        """Look at the streams and the rank as they are now."""
        self.leads = True
        if ranks != 1 and "RANK" in os.environ:
            from ..parallel.launch import is_follower

            self.leads = not is_follower(ranks)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        # Python has no stdout at all where its descriptor is closed.
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self.out = Console(width=None if terminal else PIPE_WIDTH, highlight=False)
        self.err = Console(stderr=True, highlight=False)

    def show(self, result: RenderableType) -> None:
        """A finished result: a table, a text."""
        if self.leads:
            self.out.print(result)

    def say(self, text: Text) -> None:
        """A result of one line, however long."""
        if self.leads:
            self.out.print(text, soft_wrap=not self.out.is_terminal)

    def write(self, text: str) -> None:
        """A piece of a result as it is, at once."""
        if self.leads and text and sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark beside the result."""
        if self.leads:
            self._line(Text(text, style="dim"))

    def warning(self, text: str) -> None:
        """Something that may surprise."""
        if self.leads:
            self._line(Text(f"warning: {text}", style="yellow"))

    def error(self, error: BaseException) -> None:
        """Why the command ends, with the notes of outer layers; every rank may say so."""
        text = str(error) if isinstance(error, ArchzooError) else _unexpected(error)
        lines = [text, *getattr(error, "__notes__", ())]
        who = "error" if self.leads else f"error on rank {os.environ['RANK']}"
        self._line(Text(f"{who}: " + "\n  ".join(lines), style="red"))

    @contextmanager
    def busy(self, doing: str) -> Iterator[Callable[[str], None]]:
        """A spinner while something takes its time; gives a function that changes its text."""
        with self._progress(SpinnerColumn(), TextColumn("{task.description}")) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda text: bar.update(task, description=text)

    @contextmanager
    def loading(self) -> Iterator[LoadProgress]:
        """A bar with bytes, rate and time left; gives what is to be told of the bytes."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with self._progress(*columns) as bar:
            task = bar.add_task("Opening", total=None)

            def tell(done: int, total: int) -> None:
                doing = "Loading" if done < total else "Preparing"
                bar.update(task, description=doing, completed=done, total=max(total, 1))

            yield tell

    def _progress(self, *columns: ProgressColumn) -> Progress:
        shown = self.leads and self.err.is_terminal
        return Progress(*columns, console=self.err, transient=True, disable=not shown)

    def _line(self, text: Text) -> None:
        self.err.print(text, soft_wrap=not self.err.is_terminal)


@contextmanager
def session(debug: bool, ranks: int | None = 1) -> Iterator[Screen]:
    """The screen of one command; whatever goes wrong inside becomes a message and an exit code.

    Args:
        debug: show the traceback as well.
        ranks: as in Screen.

    Raises:
        Exit: with code 1, or 130 after Ctrl-C.
    """
    screen = Screen(ranks)
    with _guarded(screen, debug), _shown_warnings(screen):
        yield screen


@contextmanager
def _guarded(screen: Screen, debug: bool) -> Iterator[None]:
    """Whatever goes wrong inside is shown, and ends the command with its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.BadParameter, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        screen.error(error)
        raise typer.Exit(1) from None


@contextmanager
def _shown_warnings(screen: Screen) -> Iterator[None]:
    """Warnings that Python's filters let through, each text once, as lines of the screen."""
    seen: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        if text not in seen:
            seen.add(text)
            screen.warning(text)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _unexpected(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"unexpected {what}\n  run again with --debug to see where it comes from"
