"""list: who claims what, as plain text or JSON. Imports no plugin and no heavy library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..naming import normalised
from ..registry import Catalog, Group, Problem, Provider, Verdict, decide
from ..registry.decision import FIRST_PLUGIN
from . import layout
from .records import Finding, Record, problem_record, provider_record

GROUPS = {
    "models": Group.MODELS,
    "backends": Group.ATTENTION_BACKENDS,
    "quantization": Group.QUANTIZATION,
    "plugins": Group.PLUGINS,
}
"""Groups by the words that the command line has for them."""

_MORE = "archzoo why NAME tells the whole decision, archzoo doctor checks the installation."
_NOTHING = {
    "models": f"No model plugin is installed; run: pip install {FIRST_PLUGIN}",
    "backends": "No plugin adds an attention backend; archzoo's own is 'torch'.",
    "quantization": "No plugin adds a quantization method.",
    "plugins": "No plugin has hooks.",
}


class Filter(NamedTuple):
    """Which claims to show.

    Args:
        groups: words of the groups, in order.
        states: states to show; all when empty.
        plugin: distribution, in any spelling; all when empty.
        pattern: glob over names, upper and lower case alike; all when empty.
    """

    groups: tuple[str, ...] = ("models",)
    states: tuple[str, ...] = ()
    plugin: str = ""
    pattern: str = ""

    @property
    def narrows(self) -> bool:
        """Whether it leaves anything out of its groups."""
        return bool(self.states or self.plugin or self.pattern)

    def claims(self, catalog: Catalog, word: str) -> tuple[Provider, ...]:
        """Claims of one group that pass."""
        return tuple(each for each in catalog.providers(GROUPS[word]) if self._passes(each))

    def problems(self, catalog: Catalog) -> tuple[Problem, ...]:
        """Faults that belong to no claim; of one distribution where one is asked for."""
        found = catalog.problems()
        if not self.plugin:
            return found
        return tuple(each for each in found if self._is_of(each.source.partition(" ")[0]))

    def __str__(self) -> str:
        """What is asked for, in words."""
        parts = [f"name {self.pattern!r}"] if self.pattern else []
        parts += [f"state {' or '.join(self.states)}"] if self.states else []
        parts += [f"plugin {self.plugin}"] if self.plugin else []
        return ", ".join(parts)

    def _passes(self, provider: Provider) -> bool:
        return (
            (not self.states or provider.state in self.states)
            and (not self.plugin or self._is_of(provider.distribution))
            and (not self.pattern or _matches(provider.name, self.pattern))
        )

    def _is_of(self, distribution: str) -> bool:
        return normalised(distribution) == normalised(self.plugin)


def as_text(catalog: Catalog, chosen: Filter, columns: int) -> str:
    """A table for each group, reasons below each row, then what is wrong besides.

    Args:
        catalog: what is installed.
        chosen: what to show.
        columns: width of the page.
    """
    shown = {word: chosen.claims(catalog, word) for word in chosen.groups}
    blocks = [_block(catalog, word, found, columns) for word, found in shown.items() if found]
    if not any(shown.values()):
        blocks.append(list(_nothing(catalog, chosen, columns)))
    problems = chosen.problems(catalog)
    if problems:
        lines = [line for each in problems for line in layout.problem_lines(each, columns)]
        blocks.append(["Problems:", *lines])
    if any(each.reasons for found in shown.values() for each in found) or problems:
        blocks.append(layout.wrapped(_MORE, columns))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def as_record(catalog: Catalog, chosen: Filter) -> Record:
    """The same as an object with ``providers`` and ``problems``."""
    return {
        "providers": [
            provider_record(provider, catalog)
            for word in chosen.groups
            for provider in chosen.claims(catalog, word)
        ],
        "problems": [problem_record(problem) for problem in chosen.problems(catalog)],
    }


def counted(providers: Sequence[Provider]) -> str:
    """How many are in which state: ``3 ready, 1 skipped``."""
    counts = Counter(str(provider.state) for provider in providers)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _block(catalog: Catalog, word: str, found: Sequence[Provider], columns: int) -> list[str]:
    group = GROUPS[word]
    lines = layout.table(
        (group.noun.upper(), "PLUGIN", "STATE"),
        [(each.name, each.label, str(each.state)) for each in found],
        [
            [
                line
                for reason in each.reasons or _contest(catalog, each)
                for line in layout.reason_lines(reason, columns, 4)
            ]
            for each in found
        ],
        columns,
    )
    return lines if len(found) == 1 else [*lines, f"{len(found)} in all: {counted(found)}"]


def _contest(catalog: Catalog, provider: Provider) -> tuple[Finding, ...]:
    """Why a claim that could serve does not: others claim the name too."""
    claims = catalog.providers_of(provider.name, provider.group)
    if len(claims) == 1 or not provider.group.names_classes:
        return ()
    decision = decide(catalog, (provider.name,), provider.group)
    if decision.verdict is not Verdict.CONTESTED:
        return ()
    others = " and ".join(each.label for each in claims if each is not provider)
    return (Finding(Verdict.CONTESTED, f"{others} claims it too", decision.hint),)


def _nothing(catalog: Catalog, chosen: Filter, columns: int) -> Iterator[str]:
    """Why the list is empty, and what to do."""
    total = sum(len(catalog.providers(GROUPS[word])) for word in chosen.groups)
    if not total or not chosen.narrows:
        for word in chosen.groups:
            yield _NOTHING[word]
        return
    yield from layout.wrapped(f"Nothing here matches {chosen}; {total} are claimed.", columns)
    near = [
        name
        for word in chosen.groups
        if chosen.pattern
        for name in catalog.near(chosen.pattern.strip("*?"), GROUPS[word])
    ]
    if near:
        yield from layout.wrapped(f"Near names: {', '.join(near)}", columns)
    yield "archzoo list shows all."


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())
