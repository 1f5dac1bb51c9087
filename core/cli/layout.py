"""Plain text for terminals and pipes: columns, wrapped reasons, nothing that steers the terminal.

The light commands print with this and not with rich, whose import costs more than they do.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence

from ..registry import Problem, Reason
from .records import Finding

PIPE_WIDTH = 120
"""Columns of text that goes into a file or a pipe."""

_LEAST_WIDTH = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_GAP = "  "
_COMMAND = re.compile(r"pip install(?: --[\w-]+)*(?: '[^']*'| [^\s,;'()]+)")
_GLUE = "\0"  # stands for a blank at which no line may end


def width() -> int:
    """Columns to print in: ``COLUMNS``, else the terminal's, else what suits a pipe."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated) > 0:
        return max(int(stated), _LEAST_WIDTH)
    if sys.stdout is None or not sys.stdout.isatty():
        return PIPE_WIDTH
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)


def printable(text: str) -> str:
    """Text on one line that steers no terminal: metadata and plugins may say anything."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def wrapped(text: str, columns: int, indent: int = 0, hanging: int = 0) -> list[str]:
    """A text as lines that fit, its own line breaks kept.

    A word longer than a line, such as a path, stays whole, and so does a pip command that fits on
    a line: both are there to be copied.

    Args:
        text: what to say.
        columns: width of the page.
        indent: blanks before every line.
        hanging: further blanks before every line but the first of each paragraph.
    """
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        inner = len(paragraph) - len(paragraph.lstrip(" "))
        first = " " * (indent + inner)
        glued = _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), printable(paragraph))
        lines += textwrap.wrap(
            glued.strip(),
            width=max(columns, indent + 20),
            initial_indent=first,
            subsequent_indent=first + " " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return [line.replace(_GLUE, " ").rstrip() for line in lines]


def reason_lines(
    reason: Reason | Finding, columns: int, indent: int, *, code: bool = False
) -> list[str]:
    """What is wrong, and on lines of its own what to do.

    Args:
        reason: the record.
        columns: width of the page.
        indent: blanks before every line.
        code: whether to show the stable code as well.
    """
    said = f"[{reason.code}] {reason.problem}" if code else reason.problem
    lines = wrapped(said, columns, indent, hanging=2)
    return lines + (wrapped(f"fix: {reason.fix}", columns, indent, 5) if reason.fix else [])


def problem_lines(problem: Problem, columns: int, indent: int = 2) -> list[str]:
    """The culprit, then what is wrong with it and what to do."""
    return [
        " " * indent + printable(problem.source),
        *reason_lines(problem.reason, columns, indent + 2, code=True),
    ]


def fields(pairs: Iterable[tuple[str, str]], columns: int, indent: int = 0) -> list[str]:
    """Names and values in two columns; a pair whose value is empty is left out."""
    shown = [(name, value) for name, value in pairs if value]
    size = max((len(name) for name, _ in shown), default=0) + len(_GAP)
    lines: list[str] = []
    for name, value in shown:
        body = wrapped(value, columns, indent + size)
        lines += [" " * indent + name.ljust(size) + body[0].strip(), *body[1:]]
    return lines


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    below: Sequence[Sequence[str]],
    columns: int,
) -> list[str]:
    """Aligned columns under headings.

    Where a row does not fit, its widest cells run on and the cell after them starts on the next
    line, in its own column: a name is cut at the edge of the page only.

    Args:
        headings: one for each column.
        rows: the cells.
        below: finished lines to print under each row.
        columns: width of the page.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    longest = (max(map(len, column)) for column in zip(headings, *cells, strict=True))
    sizes = _fit([min(size, columns) for size in longest], columns)
    lines = _row(headings, sizes, columns)
    for row, detail in zip(cells, below, strict=True):
        lines += [*_row(row, sizes, columns), *detail]
    return lines


def aligned(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int,
    right: Collection[int] = (),
) -> list[str]:
    """A table in which some columns end in one line, as numbers do.

    Args:
        headings, rows, columns: as in ``table``.
        right: numbers of these columns.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    sided = [
        [cell.rjust(widths[at]) if at in right else cell for at, cell in enumerate(row)]
        for row in (headings, *rows)
    ]
    return table(sided[0], sided[1:], [()] * len(rows), columns)


def size(nbytes: int) -> str:
    """A number of bytes in the unit that suits it.

    >>> size(1536), size(0)
    ('1.5 KiB', '0 B')
    """
    power = min(max(0, nbytes.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{nbytes / 1024**power:,.4g} {_UNITS[power]}"


def spans(numbers: Iterable[int]) -> str:
    """Numbers in rising order, those in a row as first and last.

    >>> spans([0, 1, 2, 5, 8, 9])
    '0-2, 5, 8-9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _fit(sizes: list[int], columns: int) -> list[int]:
    """Widths whose sum fits, taken from the widest columns."""
    room = columns - len(_GAP) * (len(sizes) - 1)
    while sum(sizes) > room:
        widest = sizes.index(max(sizes))
        sizes[widest] -= 1
    return sizes


def _row(cells: Sequence[str], sizes: Sequence[int], columns: int) -> list[str]:
    lines, line, start = [], "", 0
    for cell, size in zip(cells, sizes, strict=True):
        if cell and len(line) > start:
            lines.append(line.rstrip())
            line = ""
        line = line.ljust(start) + _shortened(cell, columns - start) + (_GAP if cell else "")
        start += size + len(_GAP)
    return [*lines, line.rstrip()]


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
