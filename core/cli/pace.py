"""Pace: how far a load is, as a line of text."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter


def pace(doing: str, tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """What is to be told of the bytes; tells bytes, rate and time left.

    Args:
        doing: what the line begins with.
        tell: shows a line.
    """
    begin = perf_counter()

    def told(done: int, total: int) -> None:
        tell(f"{doing}: {_line(done, total, perf_counter() - begin)}")

    return told


def _line(done: int, total: int, seconds: float) -> str:
    line = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
    if not done or seconds <= 0:
        return line
    rate = done / seconds
    return f"{line}, {rate / 1e6:,.0f} MB/s, {(total - done) / rate:.0f} s left"
