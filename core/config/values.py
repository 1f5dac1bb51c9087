"""Checks of single values: what stands in the file against what a field may hold.

JSON blurs kinds that must not be blurred: ``true`` is an integer to Python, a quoted number is a
string, NaN and Infinity parse. Every value of a config passes through one of these functions.
"""

from __future__ import annotations

import math
from typing import NamedTuple, NoReturn

from ..errors import ConfigError

MAX_SHOWN = 80
"""Characters of a refused value that a message repeats."""


class Where(NamedTuple):
    """Dotted field and file of a value, for messages."""

    field: str
    file: str = ""


def refuse(where: Where, problem: str) -> NoReturn:
    """Raise a ConfigError about one field."""
    raise ConfigError(problem, where.field, where.file)


def show(value: object) -> str:
    """A value as a message repeats it: quoted, cut when long."""
    text = repr(value[:MAX_SHOWN] if isinstance(value, str | list) else value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def integer(value: object, where: Where, low: int = 1, high: int = 2**30) -> int:
    """An integer in [low, high]; 8.0 counts as 8, true and "8" do not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(where, f"{show(value)} is not an integer; expected {low} to {high}")
    if not low <= value <= high:
        refuse(where, f"{show(value)} is out of range; expected {low} to {high}")
    return value


def number(value: object, where: Where, low: float = 0.0, above: bool = True) -> float:
    """A finite number greater than ``low`` (``above=False``: or equal to it)."""
    bound = f"a finite number {'>' if above else '>='} {low:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(where, f"{show(value)} is not a number; expected {bound}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < low or (above and result == low):
        refuse(where, f"{show(value)} is out of range; expected {bound}")
    return result


def flag(value: object, where: Where) -> bool:
    """True or false, not 0, 1 or "false"."""
    if not isinstance(value, bool):
        refuse(where, f"{show(value)} is neither true nor false")
    return value


def text(value: object, where: Where) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        refuse(where, f"{show(value)} is not a non-empty string")
    return value


def texts(value: object, where: Where) -> tuple[str, ...]:
    """A list of non-empty strings (a lone string is not one: it would be read by letters)."""
    if not isinstance(value, list | tuple):
        refuse(where, f"{show(value)} is not a list of strings")
    return tuple(
        text(item, Where(f"{where.field}[{i}]", where.file)) for i, item in enumerate(value)
    )


def numbers(value: object, where: Where, length: int) -> tuple[float, ...]:
    """A list of ``length`` finite numbers greater than 0."""
    if not isinstance(value, list | tuple):
        refuse(where, f"{show(value)} is not a list of {length} numbers")
    if len(value) != length:
        refuse(where, f"{len(value)} numbers; expected {length}, one for each rotary frequency")
    return tuple(
        number(item, Where(f"{where.field}[{i}]", where.file)) for i, item in enumerate(value)
    )
