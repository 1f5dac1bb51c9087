"""list, why, doctor: commands about what is installed, which start without typer or rich.

Their options are declared here, and ``app`` only shows their names: importing typer costs more
than all of the work.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence

from ..errors import ArchzooError
from ..registry import Group, ProviderState, catalog, catalog_for

SUMMARIES = {
    "list": "Show every installed architecture, who serves it, and why not where it cannot.",
    "why": "Show who would serve an architecture or a checkpoint, and why.",
    "doctor": "Examine every plugin, the environment variables in force, threads and devices.",
}
KINDS = {
    "models": Group.MODELS,
    "backends": Group.ATTENTION_BACKENDS,
    "quantization": Group.QUANTIZATION,
    "hooks": Group.PLUGINS,
}
"""What ``list --kind`` calls the groups."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the three commands.

    Args:
        command: its name.
        arguments: what follows it.

    Returns:
        The exit code: 0 fine, 1 refused or not served or broken.

    Raises:
        SystemExit: with code 2 for wrong usage, 0 after ``--help``.
    """
    parser = argparse.ArgumentParser(f"archzoo {command}", description=SUMMARIES[command])
    parser.add_argument("--json", action="store_true", help="as JSON")
    declare, act = _COMMANDS[command]
    declare(parser)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        return act(options)
    except ArchzooError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:
        print(f"error: unexpected {type(error).__name__}: {error}", file=sys.stderr)
    return 1


def _declare_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="NAME", help="* and ? stand for anything"
    )
    parser.add_argument("--kind", choices=KINDS, default="models", help="what to list")
    parser.add_argument(
        "--state", choices=list(map(str, ProviderState)), action="append", help="repeatable"
    )
    parser.add_argument("--plugin", default="", metavar="DISTRIBUTION", help="of this plugin only")


def _list(options: argparse.Namespace) -> int:
    from . import listing

    states = tuple(options.state or ())
    filters = listing.Filters(options.pattern, states, options.plugin, KINDS[options.kind])
    print((listing.as_json if options.json else listing.as_text)(catalog(), filters))
    return 0


def _declare_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("asked", metavar="ARCHITECTURE|PATH", help="a name, or a checkpoint")


def _why(options: argparse.Namespace) -> int:
    from . import why

    question = why.question(options.asked)
    source = catalog_for(question.names)
    print((why.as_json if options.json else why.as_text)(question, source))
    return 0 if why.served(question, source) else 1


def _declare_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probe", action="store_true", help="also import each plugin, in its own interpreter"
    )
    parser.add_argument(
        "--probe-timeout", type=float, default=60.0, metavar="SECONDS", help="for each import"
    )


def _doctor(options: argparse.Namespace) -> int:
    from . import doctor

    found = doctor.examine(catalog(), options.probe_timeout if options.probe else None)
    print(doctor.as_json(found) if options.json else doctor.as_text(found))
    return 1 if found.faults else 0


_COMMANDS: dict[
    str,
    tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]],
] = {
    "list": (_declare_list, _list),
    "why": (_declare_why, _why),
    "doctor": (_declare_doctor, _doctor),
}
