"""Option values that are lists of numbers, numbers of bytes, or files to write."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path

import typer

_SEPARATORS = re.compile(r"[,\s]+")
_BYTES = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)\s*(?P<unit>[KMGT]i?B|B|)", re.IGNORECASE)
_POWERS = "bkmgt"
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


def check_writable(file: Path, option: str) -> None:
    """Find out before the work that its result cannot be written. The disk stays as it was.

    Args:
        file: what will be written.
        option: where it was given, for the message.

    Raises:
        BadParameter: no such directory, a directory, or no right to write there.
    """
    place = Path(os.path.realpath(file))
    new = not os.path.exists(place)
    if not new and not place.is_file() and not place.is_dir():
        return  # a pipe or a device: opening it twice would be seen at its other end
    try:
        place.open("ab").close()
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {file} ({error.strerror}); give a file in a directory that "
            "exists and may be written",
            param_hint=option,
        ) from None
    if new:
        place.unlink(missing_ok=True)


def byte_count(text: str, option: str) -> int:
    """A number of bytes, such as ``80GiB``, ``80GB`` or ``123456``.

    Args:
        text: what the user wrote.
        option: where, for the message.

    Raises:
        BadParameter: something else, or less than a byte.

    >>> byte_count("1.5 KiB", "--memory"), byte_count("2GB", "--memory"), byte_count("7", "--memory")
    (1536, 2000000000, 7)
    """
    found = _BYTES.fullmatch(text.strip())
    count = 0
    if found is not None and text.isascii():
        unit = found["unit"].lower() or "b"
        base = 1024 if "i" in unit else 1000
        count = int(Fraction(found["number"]) * base ** _POWERS.index(unit[0]))
    if count < 1:
        raise typer.BadParameter(
            f"{text!r} is no number of bytes; write 80GiB, 80GB or a whole number",
            param_hint=option,
        )
    return count
