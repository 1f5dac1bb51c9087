"""Claims that only running code can tell, asked for when nothing static has an answer.

Two sources, each isolated from the others: modules of external packages whose claims cannot be
read from their source, and the hook ``archzoo_architectures``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..naming import normalised
from .claims import Claim
from .entries import Entry
from .external import ExternalPackage, declared_by
from .groups import Group
from .hook_entry import HookEntry
from .hook_plugins import HookPlugins
from .index import Catalog
from .provider import Origin, Problem, Provider, Reason, ReasonCode

_MEND = "mend the package, or take it out of that list"


class LateAnswer(NamedTuple):
    """What running code said.

    Args:
        claims: on architectures.
        problems: who could not be asked, and why.
        cause: the first exception among those, to be chained.
    """

    claims: tuple[Claim, ...]
    problems: tuple[Problem, ...]
    cause: BaseException | None = None


_ANSWERS: WeakKeyDictionary[Catalog, LateAnswer] = WeakKeyDictionary()


def ask_late(source: Catalog) -> LateAnswer:
    """Import undecided external modules and call the hook, once for each catalog.

    A hook may itself resolve, and then gets an answer without its own part; only the outermost
    answer, stored last, is whole.
    """
    if source not in _ANSWERS:
        answer = _asked(source)
        _ANSWERS[source] = answer
    return _ANSWERS[source]


def _asked(source: Catalog) -> LateAnswer:
    claims: list[Claim] = []
    problems: list[Problem] = []
    causes: list[BaseException] = []
    for package in source.external_packages():
        for told in _imported(package):
            if isinstance(told, BaseException):
                causes.append(told)
            elif isinstance(told, Reason):
                problems.append(Problem(source.settings.external_by, told))
            else:
                claims.append(Claim(told, package.name, Origin.EXTERNAL))
    hooks = hooks_of(source)
    by_key = {plugin.key: plugin for plugin in source.plugins()}
    for hook, name, answer in hooks.architectures():
        plugin = by_key[hook.key]
        found = answer if isinstance(answer, type) else None
        claims.append(Claim(_answered(name, answer), plugin.key, Origin.HOOK, plugin, found))
    problems += [Problem(label, reason) for label, reason in hooks.problems()]
    return LateAnswer(tuple(claims), tuple(problems), causes[0] if causes else None)


@lru_cache(maxsize=8)
def hooks_of(source: Catalog) -> HookPlugins:
    """The hook plugins of a catalog; none is imported before one of its hooks is called."""
    return HookPlugins(tuple(map(_hook_entry, source.providers(Group.PLUGINS))))


def _hook_entry(provider: Provider) -> HookEntry:
    """A claim of the group of hooks, as what loads it wants it."""
    return HookEntry(
        provider.label,
        normalised(provider.distribution),
        Entry(provider.name, provider.module, provider.attr),
        provider.reasons,
    )


def _answered(name: str, answer: str | type) -> Entry:
    if isinstance(answer, type):
        return Entry(name, answer.__module__, answer.__qualname__)
    module, _, attr = answer.partition(":")
    return Entry(name, module, attr)


def _imported(package: ExternalPackage) -> Iterator[Entry | Reason | BaseException]:
    """What the undecided modules of a package declare once they are imported."""
    for name in package.undecided:
        try:
            module = import_module(name)
        except (Exception, SystemExit) as error:
            problem = f"{name} cannot be imported: {type(error).__name__}: {error}"
            yield Reason(ReasonCode.IMPORT_FAILED, problem, _MEND)
            yield error
            continue
        try:
            entries = declared_by(module, package.name)
        except Exception as error:  # a module's __getattr__ may do anything
            problem = f"what {name} declares cannot be used: {error}"
            yield Reason(ReasonCode.ENTRY_POINT_INVALID, problem, _MEND)
            yield error
            continue
        yield from entries
        if not entries and not package.entries:
            problem = f"{name} declares no EntryClass and no ARCHITECTURES"
            fix = "set EntryClass to a model class, or a list of them"
            yield Reason(ReasonCode.NOTHING_DECLARED, problem, fix)
