"""Option values that are lists of numbers."""

from __future__ import annotations

import re

import typer

_SEPARATORS = re.compile(r"[,\s]+")
_DIGITS = 18  # more would be no id and no size of anything


def integers(text: str, option: str) -> list[int]:
    """Whole numbers, separated by commas or blanks.

    Args:
        text: what the user wrote.
        option: where, for the message.

    Raises:
        BadParameter: no number at all, or something else among them.

    >>> integers("1, 2,3", "--token-ids")
    [1, 2, 3]
    """
    parts = [part for part in _SEPARATORS.split(text) if part]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) <= _DIGITS):
            raise typer.BadParameter(
                f"{part!r} is no whole number; write numbers such as 1,2,3", param_hint=option
            )
    if not parts:
        raise typer.BadParameter("holds no number; write numbers such as 1,2,3", param_hint=option)
    return [int(part) for part in parts]


def sizes(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, each once, in the order given.

    Args:
        text: what the user wrote.
        option: where, for the message.

    Raises:
        BadParameter: no number, a zero, or something else among them.

    >>> sizes("3,1,3", "--tp")
    (3, 1)
    """
    numbers = integers(text, option)
    if 0 in numbers:
        raise typer.BadParameter("0 is no size; write numbers from 1 on", param_hint=option)
    return tuple(dict.fromkeys(numbers))
