"""The catalog: every claim of every installed plugin, under the settings. Nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..settings import DISABLED_VARIABLE, PLUGINS_VARIABLE, Settings
from .entries import Entry
from .provider import Provider, Reason, ReasonCode
from .requirements import Requirements
from .scan import Plugin, scan

_GROUP = "archzoo.models"


@dataclass(frozen=True)
class Problem:
    """Something wrong that belongs to no provider.

    Args:
        source: the distribution, or the environment variable.
        reason: what is wrong with it.
    """

    source: str
    reason: Reason

    def __str__(self) -> str:
        """Source, problem, fix."""
        return f"{self.source}: {self.reason}"


class Catalog:
    """Which architectures are claimed, by whom, and whether each claim can serve.

    Requirements of a provider are checked when it is asked for, once.

    Args:
        path: places to search for distributions; ``sys.path`` as it is now when None.
        settings: what is disabled or left out; from the environment when None.
    """

    def __init__(
        self, path: Sequence[str] | None = None, *, settings: Settings | None = None
    ) -> None:
        """Read the metadata of every distribution on the path, once."""
        places = tuple(sys.path if path is None else path)
        self.settings = Settings.from_environ() if settings is None else settings
        self._plugins = scan(_GROUP, places)
        self._requirements = Requirements(places)
        self._providers: dict[str, tuple[Provider, ...]] = {}
        self._claims: dict[str, list[tuple[Plugin, Entry]]] = {}
        for plugin in self._plugins:
            for entry in plugin.entries:
                self._claims.setdefault(entry.name, []).append((plugin, entry))

    def architectures(self) -> tuple[str, ...]:
        """Every architecture that is claimed, usable or not, sorted."""
        return tuple(sorted(self._claims))

    def distributions(self) -> tuple[str, ...]:
        """Normalised name of every plugin that the settings let in, in search order."""
        return tuple(plugin.key for plugin in self._plugins if self.settings.selects(plugin.key))

    def providers(self) -> tuple[Provider, ...]:
        """Every claim, sorted by architecture, then distribution."""
        return tuple(
            provider for name in self.architectures() for provider in self.providers_of(name)
        )

    def providers_of(self, architecture: str) -> tuple[Provider, ...]:
        """Claims on one architecture, sorted by distribution; empty when nobody claims it."""
        if architecture not in self._claims:
            return ()
        if architecture not in self._providers:
            claims = sorted(self._claims[architecture], key=lambda claim: claim[0].key)
            self._providers[architecture] = tuple(self._provider(*claim) for claim in claims)
        return self._providers[architecture]

    def near(self, architecture: str) -> tuple[str, ...]:
        """Claimed architectures that look like a name, best first."""
        return _near(architecture, self._claims)

    def plugin_problems(self) -> tuple[Problem, ...]:
        """Faults of plugins that the settings let in, beyond those of single providers."""
        return tuple(
            Problem(plugin.installed.label, fault)
            for plugin in self._plugins
            if self.settings.selects(plugin.key)
            for fault in plugin.faults
        )

    def setting_problems(self) -> tuple[Problem, ...]:
        """Names in the settings that match nothing installed, and so have no effect."""
        names = {plugin.key for plugin in self._plugins}
        unmatched = [
            *_unmatched(DISABLED_VARIABLE, self.settings.disabled, self._claims, "architecture"),
            *_unmatched(PLUGINS_VARIABLE, self.settings.plugins or (), names, "plugin"),
        ]
        return tuple(unmatched)

    def _provider(self, plugin: Plugin, entry: Entry) -> Provider:
        return Provider(
            architecture=entry.name,
            module=entry.module,
            attr=entry.attr,
            extras=entry.extras,
            distribution=plugin.installed.name,
            version=plugin.installed.version,
            reasons=self._reasons(plugin, entry),
        )

    def _reasons(self, plugin: Plugin, entry: Entry) -> tuple[Reason, ...]:
        """Why a claim cannot serve. Requirements are looked at only if all else is well."""
        reasons: list[Reason] = []
        if not self.settings.selects(plugin.key):
            problem = f"{plugin.key} is not in {PLUGINS_VARIABLE}"
            reasons.append(Reason(ReasonCode.NOT_SELECTED, problem, "add it to that list"))
        if entry.name in self.settings.disabled:
            problem = f"{entry.name} is in {DISABLED_VARIABLE}"
            reasons.append(Reason(ReasonCode.DISABLED, problem, "remove it from that list"))
        faults = (plugin.installed.fault, entry.fault)
        reasons += [fault for fault in faults if fault is not None]
        if not reasons:
            return self._requirements.unmet(plugin.installed, entry.extras)
        return tuple(reasons)


def _near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that look like one, upper and lower case aside, best first."""
    from difflib import get_close_matches  # only failures need it, and importing it costs 10 ms

    spellings = {other.lower(): other for other in known}
    return tuple(spellings[match] for match in get_close_matches(name.lower(), spellings))


def _unmatched(
    variable: str, names: Iterable[str], known: Iterable[str], what: str
) -> Iterable[Problem]:
    known = set(known)
    for name in sorted(set(names) - known):
        near = _near(name, sorted(known))
        fix = f"near names: {', '.join(near)}" if near else "remove it from that list"
        problem = f"{name!r} matches no installed {what}"
        yield Problem(variable, Reason(ReasonCode.SETTING_UNMATCHED, problem, fix))


def catalog() -> Catalog:
    """The catalog of this process: scanned once for each ``sys.path`` and content of the variables.

    Raises:
        ConfigError: an environment variable that cannot be understood.
    """
    return _catalog_under(Settings.from_environ(), tuple(sys.path))


@lru_cache(maxsize=8)  # a program that keeps changing sys.path must not collect catalogs
def _catalog_under(settings: Settings, path: tuple[str, ...]) -> Catalog:
    return Catalog(path, settings=settings)
