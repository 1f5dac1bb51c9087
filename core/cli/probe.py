"""One provider imported in an interpreter of its own: ``python -m archzoo.cli.probe``.

The request comes in as JSON on stdin. The result goes out as JSON on what was stdout; by the time
plugin code runs, stdout is stderr, which the parent keeps apart. An interpreter that dies sends
no result, and the parent says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from ..errors import MissingDependency, PluginLoadError
from ..naming import normalised
from ..registry import Catalog, Group, Origin, Provider, ProviderState, ReasonCode, catalog
from ..registry.late import ask_late
from ..registry.loading import load_class
from .records import DoctorCode, Finding, finding

EXTERNAL = "external"
"""Stands in a request for the group when a whole external package is meant."""

_MOST = 4_000  # characters of a text; more help nobody
_MOST_FINDINGS = 20
_HEAVY = ("torch", "transformers")
_AUTHOR = "report it to the distribution's author"


def main() -> None:
    """Answer one request, and end without running what plugins left behind."""
    request = json.loads(sys.stdin.buffer.read())
    result_end = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = request["path"]
    result = probed(request)
    with os.fdopen(result_end, "w", encoding="utf-8") as pipe:
        json.dump(result, pipe)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # threads and exit handlers of a plugin have no say in how long this takes


def probed(request: dict[str, Any]) -> dict[str, Any]:
    """What importing a provider comes to.

    Args:
        request: ``group``, ``name`` and ``distribution`` of a claim; the name is empty for
            hook plugins and external packages, which are asked as a whole.

    Returns:
        ``outcome`` (ok, skipped or failed), ``reasons``, ``notes``, ``seconds``.
    """
    outcome, notes, began = "ok", list[Finding](), time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        try:
            reasons = list(_ask(request, notes))
        except MissingDependency as error:
            outcome, problem = "skipped", f"{error.feature} needs {error.requirement!r}"
            fix = f"run: {error.install}"
            reasons = [Finding(ReasonCode.DEPENDENCY_MISSING, problem, fix)]
        except PluginLoadError as error:
            reasons = [Finding(error.code, error.problem, error.fix)]
        except BaseException as error:  # a plugin may raise what no error handler expects
            problem = f"{type(error).__name__}: {error}"
            reasons = [Finding(ReasonCode.IMPORT_FAILED, problem, _AUTHOR)]
    seconds = time.perf_counter() - began
    notes += [_warned(warning.message) for warning in warned]
    return {
        "outcome": "failed" if reasons and outcome == "ok" else outcome,
        "reasons": [_cut(each) for each in reasons[:_MOST_FINDINGS]],
        "notes": [_cut(each) for each in notes[:_MOST_FINDINGS]],
        "seconds": seconds,
    }


def _ask(request: dict[str, Any], notes: list[Finding]) -> Iterator[Finding]:
    source, maker = catalog(), request["distribution"]
    if request["group"] == EXTERNAL:
        settings = source.settings._replace(plugins=frozenset(), external=(maker,))
        yield from _ask_late(source.under(settings), notes)
    elif request["group"] == Group.PLUGINS:
        only = frozenset({normalised(maker)})
        settings = source.settings._replace(plugins=only, external=())
        before = set(sys.modules)
        yield from _ask_late(source.under(settings), notes)
        heavy = [name for name in _HEAVY if name in set(sys.modules) - before]
        if heavy:
            problem = f"its hook module imports {' and '.join(heavy)}"
            notes.append(Finding(DoctorCode.HEAVY_HOOKS, problem, _AUTHOR))
    else:
        claims = source.providers_of(request["name"], Group(request["group"]))
        load_class(next(each for each in claims if each.distribution == maker), source)


def _ask_late(source: Catalog, notes: list[Finding]) -> Iterator[Finding]:
    """Ask running code what it claims, as ``resolve`` does, and load every class it names."""
    answer = ask_late(source)
    yield from (finding(problem.reason) for problem in answer.problems)
    extended = source.with_late(answer.claims)
    offered = list(dict.fromkeys(claim.entry.name for claim in answer.claims))
    if offered:
        notes.append(Finding(DoctorCode.OFFERS, f"it offers {', '.join(offered)}", ""))
    for name in offered:
        for provider in extended.providers_of(name):
            if _is_late(provider):
                load_class(provider, extended)


def _is_late(provider: Provider) -> bool:
    return provider.origin is not Origin.ENTRY_POINT and provider.state is ProviderState.READY


def _warned(message: Warning | str) -> Finding:
    kind = type(message).__name__
    return Finding(DoctorCode.WARNS, f"it gives a {kind}: {message}", _AUTHOR)


def _cut(said: Finding) -> dict[str, str]:
    """As JSON, each text cut to a length that fits."""
    return {key: value[:_MOST] for key, value in said._asdict().items()}


if __name__ == "__main__":
    main()
