"""Warnings that point at the user's own line, however deep inside archzoo they arise."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn_caller(text: str) -> None:
    """Warn at the innermost line that is not archzoo's.

    Args:
        text: what to say.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
