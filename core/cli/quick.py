"""list, why and doctor: options and exit codes. Neither typer nor rich is imported for them.

Those two alone take as long as everything these commands do, so ``main`` comes here before it
imports the application; the application shows the same commands in its help.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from ..errors import ArchzooError
from ..registry import ProviderState, catalog
from . import layout
from .listing import GROUPS, Filter
from .listing import as_record as listing_record
from .listing import as_text as listing_text
from .records import Record

SUMMARIES = {
    "list": "Show every installed architecture, who serves it, and why not where it cannot.",
    "why": "Explain which plugin serves an architecture or a checkpoint, or why none does.",
    "doctor": "Check the installation: versions, settings, every plugin, what is broken.",
}
"""What each command does, as the help of all commands says it."""

_PROBE_TIMEOUT = 60.0


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands.

    Args:
        command: its name.
        arguments: what follows it.

    Returns:
        The exit code: 0 fine, 1 refused or broken, 2 usage.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        options = _PARSERS[command]().parse_args(arguments)
        code: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ArchzooError as error:
        for line in str(error).splitlines():
            print(f"error: {layout.printable(line)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        _forget_stdout()
        return 1


def _list(options: argparse.Namespace) -> int:
    words = tuple(GROUPS) if options.group == "all" else (options.group,)
    chosen = Filter(words, tuple(options.state), options.plugin, options.name)
    source = catalog()
    if options.json:
        _print_json(listing_record(source, chosen))
    else:
        print(listing_text(source, chosen, layout.width()))
    return 0


def _why(options: argparse.Namespace) -> int:
    from .question import UsageError, read_question
    from .why import answer, as_record
    from .why_text import as_text

    try:
        question = read_question(options.asked)
    except UsageError as error:
        _why_parser().error(layout.printable(str(error)))
    found = answer(question, catalog(), GROUPS[options.group])
    if options.json:
        _print_json(as_record(found))
    else:
        print(as_text(found, layout.width()))
    return 0 if found.served else 1


def _doctor(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from .doctor import as_record, examine
    from .doctor_text import as_text
    from .machine import look
    from .probing import probe, targets

    report = examine(look())
    if options.probe and report.settings_fault is None:
        probes = probe(targets(report.catalog), options.probe_timeout, _progress())
        report = replace(report, probes=probes)
    if options.json:
        _print_json(as_record(report))
    else:
        print(as_text(report, layout.width()))
    return 1 if report.faults else 0


def _list_parser() -> argparse.ArgumentParser:
    parser = _parser("list", _list)
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a name or a glob")
    _add_group(parser, "all")
    states = [str(state) for state in ProviderState]
    parser.add_argument(
        "--state",
        type=str.lower,
        choices=states,
        action="append",
        default=[],
        metavar="STATE",
        help=f"only claims in this state; repeatable: {', '.join(states)}",
    )
    parser.add_argument("--plugin", default="", metavar="DIST", help="only claims of this plugin")
    return parser


def _why_parser() -> argparse.ArgumentParser:
    parser = _parser("why", _why)
    what = "architecture, or a checkpoint: directory, config.json, .safetensors or .gguf file"
    parser.add_argument("asked", metavar="ARCH|PATH", help=what)
    _add_group(parser)
    return parser


def _doctor_parser() -> argparse.ArgumentParser:
    parser = _parser("doctor", _doctor)
    parser.add_argument(
        "--probe",
        action="store_true",
        help="also import every plugin that is ready, each in an interpreter of its own",
    )
    parser.add_argument(
        "--probe-timeout",
        type=_seconds,
        default=_PROBE_TIMEOUT,
        metavar="SECONDS",
        help=f"that an import may take (default: {_PROBE_TIMEOUT:g})",
    )
    return parser


_PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "list": _list_parser,
    "why": _why_parser,
    "doctor": _doctor_parser,
}


def _parser(command: str, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"archzoo {command}", description=SUMMARIES[command], allow_abbrev=False
    )
    parser.set_defaults(run=function)
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_group(parser: argparse.ArgumentParser, *more: str) -> None:
    words = [*GROUPS, *more]
    parser.add_argument(
        "--group",
        choices=words,
        default="models",
        metavar="GROUP",
        help=f"{', '.join(words)} (default: models)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds above 0")
    return seconds


def _print_json(record: Record) -> None:
    import json  # plain text does not need it

    print(json.dumps(record, indent=2))


def _progress() -> Callable[[int, int, Sequence[str]], None]:
    """A line on the terminal that tells what is being imported; nothing in a pipe."""
    if sys.stderr is None or not sys.stderr.isatty():
        return lambda *_: None
    stream, last = sys.stderr, [""]

    def tell(done: int, total: int, labels: Sequence[str]) -> None:
        line = f"importing {done}/{total}: {', '.join(map(layout.printable, labels))}"
        line = line[: layout.width() - 1] if labels else ""
        if line != last[0]:
            stream.write(f"\r\x1b[K{line}")
            stream.flush()
            last[0] = line

    return tell


def _forget_stdout() -> None:
    """Nobody reads any more; the interpreter must not try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
