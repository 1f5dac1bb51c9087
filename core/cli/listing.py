"""list: what is installed, as plain text or JSON. Imports no plugin and no heavy library."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..registry import Catalog, Problem, Provider, Reason

_HEADINGS = ("ARCHITECTURE", "PLUGIN", "STATE")
_NOTHING = "No model plugin is installed; run: pip install archzoo-llama"


def as_text(catalog: Catalog) -> str:
    """One line for each claim, its reasons below it, then what is wrong besides."""
    providers, problems = catalog.providers(), _problems(catalog)
    lines = _table(providers) if providers else [_NOTHING]
    if problems:
        lines += ["", "Problems:", *(f"  {problem}" for problem in problems)]
    return "\n".join(map(_printable, lines))


def as_json(catalog: Catalog) -> str:
    """The same as an object with ``providers`` and ``problems``."""
    content = {
        "providers": [
            {
                "architecture": provider.architecture,
                "distribution": provider.distribution,
                "version": provider.version,
                "target": provider.target,
                "state": str(provider.state),
                "reasons": [_reason(reason) for reason in provider.reasons],
            }
            for provider in catalog.providers()
        ],
        "problems": [
            {"source": problem.source, **_reason(problem.reason)} for problem in _problems(catalog)
        ],
    }
    return json.dumps(content, indent=2)


def _problems(catalog: Catalog) -> tuple[Problem, ...]:
    return (*catalog.plugin_problems(), *catalog.setting_problems())


def _table(providers: Sequence[Provider]) -> list[str]:
    rows = [(each.architecture, each.label, str(each.state)) for each in providers]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    lines = [_row(_HEADINGS, widths)]
    for row, provider in zip(rows, providers, strict=True):
        lines.append(_row(row, widths))
        lines += [f"  {reason}" for reason in provider.reasons]
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def _reason(reason: Reason) -> dict[str, str]:
    return {"code": str(reason.code), "problem": reason.problem, "fix": reason.fix}


def _printable(line: str) -> str:
    """Metadata may hold anything: nothing of it may steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
