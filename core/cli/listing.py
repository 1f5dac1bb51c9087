"""list: what is installed, as plain text or JSON. Imports no plugin and no heavy library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name

from ..registry import Catalog, Group, Problem, Provider, Verdict, decide
from .plain import as_problem, as_provider, explained, problem_lines, table

_NOTHING = "No model plugin is installed; run: pip install archzoo-llama"


@dataclass(frozen=True)
class Filters:
    """Which claims to show.

    Args:
        pattern: of the name, with ``*`` and ``?``; case does not matter.
        states: only these; all when empty.
        plugin: only this distribution, in any spelling; all when empty.
        group: which kind of name.
    """

    pattern: str = "*"
    states: tuple[str, ...] = ()
    plugin: str = ""
    group: Group = Group.MODELS

    def keep(self, provider: Provider) -> bool:
        """Whether a provider is to be shown."""
        plugin = canonicalize_name(provider.distribution)
        return (
            fnmatchcase(provider.name.lower(), self.pattern.lower())
            and (not self.states or provider.state in self.states)
            and (not self.plugin or plugin == canonicalize_name(self.plugin))
        )


EVERYTHING = Filters()


def as_text(catalog: Catalog, filters: Filters = EVERYTHING) -> str:
    """One line for each claim, its reasons below it, then what is wrong besides."""
    everything = catalog.providers(filters.group)
    shown = [provider for provider in everything if filters.keep(provider)]
    if shown:
        lines = _table(shown, catalog)
    elif everything:
        lines = [f"None of {len(everything)} entries matches; archzoo list shows all"]
    elif filters.group is Group.MODELS:
        lines = [_NOTHING]
    else:
        lines = [f"No {filters.group.noun} is installed"]
    return "\n".join([*lines, *problem_lines(_problems(catalog))])


def as_json(catalog: Catalog, filters: Filters = EVERYTHING) -> str:
    """The same as an object with ``providers`` and ``problems``."""
    shown = [each for each in catalog.providers(filters.group) if filters.keep(each)]
    content = {
        "providers": [as_provider(provider) for provider in shown],
        "problems": [as_problem(problem) for problem in _problems(catalog)],
    }
    return json.dumps(content, indent=2)


def _problems(catalog: Catalog) -> tuple[Problem, ...]:
    return (*catalog.plugin_problems(), *catalog.setting_problems())


def _table(providers: Sequence[Provider], catalog: Catalog) -> list[str]:
    headings = (providers[0].group.noun.upper(), "PLUGIN", "STATE")
    rows = [((each.name, each.label, str(each.state)), _notes(each, catalog)) for each in providers]
    return table(headings, rows)


def _notes(provider: Provider, catalog: Catalog) -> list[str]:
    """Why a claim does not serve; a contest is a reason of no single claim."""
    decision = decide(catalog, (provider.name,), provider.group)
    contest = [f"contested: {decision.hint}"] if decision.verdict is Verdict.CONTESTED else []
    return [explained(reason) for reason in provider.reasons] or contest
