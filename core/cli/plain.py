"""Plain text for screens that must start at once: columns, wrapping, nothing that needs rich."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from ..registry import Problem, Provider, Reason

PIPE_WIDTH = 120
_NARROWEST = 40


def width() -> int:
    """Columns of the terminal, of ``COLUMNS``, or of a pipe."""
    return max(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, _NARROWEST)


def printable(text: str) -> str:
    """Metadata may hold anything: nothing of it may steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def table(
    headings: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> list[str]:
    """Aligned columns; below each row its notes, indented.

    Args:
        headings: of the columns.
        rows: (cells, notes) of each row.
    """
    cells = [[printable(cell) for cell in row] for row, _ in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = [_row(headings, widths)]
    for row, (_, notes) in zip(cells, rows, strict=True):
        lines.append(_row(row, widths))
        lines += [line for note in notes for line in wrapped(note, 4)]
    return lines


def wrapped(text: str, indent: int = 0, first: str = "") -> list[str]:
    """A text in the width of the screen.

    Args:
        text: becomes one paragraph.
        indent: blanks before each line.
        first: what stands before the first line, in place of its last blanks.
    """
    lead = " " * indent
    joined = "; ".join(filter(None, map(str.strip, text.splitlines())))
    return textwrap.wrap(
        printable(joined),
        width(),
        initial_indent=f"{lead[: max(indent - len(first), 0)]}{first}",
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [lead.rstrip()]


def pairs(items: Iterable[tuple[str, str]], indent: int = 2) -> list[str]:
    """Names and their values, aligned, values wrapped."""
    known = [(printable(name), value) for name, value in items]
    longest = max((len(name) for name, _ in known), default=0)
    lines: list[str] = []
    for name, value in known:
        label = f"{' ' * indent}{name.ljust(longest)}  "
        lines += wrapped(value, len(label), label)
    return lines


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """A section of problems; nothing when there are none."""
    if not problems:
        return []
    lines = ["", "Problems:"]
    for problem in problems:
        lines += wrapped(f"{problem.source}: {explained(problem.reason)}", 4, "  - ")
    return lines


def explained(reason: Reason) -> str:
    """A reason with its code."""
    return f"{reason} [{reason.code}]"


def as_reason(reason: Reason) -> dict[str, str]:
    """A reason for JSON."""
    return {"code": str(reason.code), "problem": reason.problem, "fix": reason.fix}


def as_problem(problem: Problem) -> dict[str, str]:
    """A problem for JSON."""
    return {"source": problem.source, **as_reason(problem.reason)}


def as_provider(provider: Provider) -> dict[str, object]:
    """A provider for JSON."""
    return {
        "group": str(provider.group),
        "architecture": provider.name,
        "distribution": provider.distribution,
        "version": provider.version,
        "origin": str(provider.origin),
        "target": provider.target,
        "state": str(provider.state),
        "reasons": [as_reason(reason) for reason in provider.reasons],
    }


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()
