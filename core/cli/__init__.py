"""The command line: ``archzoo``, also ``python -m archzoo``.

::

    app        commands and their options; imports nothing heavy
    listing    list, as plain text
    generate   text from a checkpoint
    verify     our layers beside those of transformers      trace      layers caught in the act
    bench      speed, load time and memory beside theirs    contenders the two loops; footprint
    reference  the transformers model of a checkpoint
    console    what people see: progress, warnings, errors

Exit codes: 0 fine, 1 refused or failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    try:
        from .app import app

        app(args=None if argv is None else list(argv), prog_name="archzoo")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
