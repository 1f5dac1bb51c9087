"""The command line: ``archzoo``, also ``python -m archzoo``.

::

    quick      list, why, doctor: the three that start at once, without typer or rich
    app        commands and their options; imports nothing heavy      options      those they share
    listing    list      question, gguf_architecture, why, why_text      why
    machine, doctor, doctor_text      doctor      probing, probe      its imports, isolated
    layout     columns and wrapping without rich      records      shapes of --json
    preflight_command, survey, survey_text, survey_record      preflight
    preflight, preflight_text      preflight --boundaries    boundary_table      what they do
    generate   text from a checkpoint
    verify     our layers beside those of transformers      trace      layers caught in the act
    bench      speed, load time and memory beside theirs    contenders the two loops; footprint
    reference  the transformers model of a checkpoint
    console    what people see: progress, warnings, errors    pace       a load as a line of text

Exit codes: 0 fine, 1 refused or failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

QUICK = ("list", "why", "doctor")
"""Commands that start without the libraries the others need."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in QUICK:
            from .quick import run

            return run(words[0], words[1:])
        from .app import app

        app(args=words, prog_name="archzoo")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
