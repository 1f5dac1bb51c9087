"""The catalog: every claim of every installed plugin, under the settings. Nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ..naming import normalised
from ..settings import PLUGINS_VARIABLE, Settings
from .claims import Claim
from .groups import Group
from .installation import Installation, installation
from .provider import Origin, Problem, Provider, Reason, ReasonCode
from .scan import Installed, Plugin
from .unmatched import near_names, unmatched_settings

if TYPE_CHECKING:
    from .external import ExternalPackage

RESERVED = {Group.ATTENTION_BACKENDS: frozenset({"torch"})}
"""Names that archzoo serves itself; a plugin cannot claim them."""


class Catalog:
    """Which names are claimed, by whom, and whether each claim can serve.

    Requirements of a provider are checked when it is asked for, once.

    Args:
        path: places to search for distributions; ``sys.path`` as it is now when None.
        settings: what is disabled, left out or preferred; from the environment when None.
        scanned: what was found there already, instead of a path.
        late: claims that only running code could tell, from ``late``.
    """

    def __init__(
        self,
        path: Sequence[str] | None = None,
        *,
        settings: Settings | None = None,
        scanned: Installation | None = None,
        late: Iterable[Claim] = (),
    ) -> None:
        """Put the settings over what is installed; scans the path unless it has been."""
        self.settings = Settings.from_environ() if settings is None else settings
        self.installation = scanned or Installation(sys.path if path is None else path)
        self._claims: dict[Group, dict[str, list[Claim]]] = {group: {} for group in Group}
        self._providers: dict[tuple[Group, str], tuple[Provider, ...]] = {}
        for plugin in self.installation.plugins:
            for group, entries in plugin.entries.items():
                for entry in entries:
                    self._add(group, Claim(entry, plugin.key, Origin.ENTRY_POINT, plugin))
        for package in self.external_packages():
            for entry in package.entries:
                self._add(Group.MODELS, Claim(entry, package.name, Origin.EXTERNAL))
        for claim in late:
            self._add(Group.MODELS, claim)

    def under(self, settings: Settings) -> Catalog:
        """The same installation under other settings; nothing is scanned again."""
        return Catalog(settings=settings, scanned=self.installation)

    def with_late(self, claims: Iterable[Claim]) -> Catalog:
        """The same with further claims on architectures."""
        return Catalog(settings=self.settings, scanned=self.installation, late=claims)

    def architectures(self) -> tuple[str, ...]:
        """Every architecture that is claimed, usable or not, sorted."""
        return self.names(Group.MODELS)

    def names(self, group: Group) -> tuple[str, ...]:
        """Every name that is claimed in a group, usable or not, sorted."""
        return tuple(sorted(self._claims[group]))

    def distributions(self) -> tuple[str, ...]:
        """Normalised name of every plugin that the settings let in, sorted."""
        return tuple(plugin.key for plugin in self.plugins())

    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin that the settings let in, sorted by name."""
        return tuple(p for p in self.installation.plugins if self.settings.selects(p.key))

    def external_packages(self) -> tuple[ExternalPackage, ...]:
        """Packages that the settings name, in that order."""
        return tuple(self.installation.external(name) for name in self.settings.external)

    def providers(self, group: Group = Group.MODELS) -> tuple[Provider, ...]:
        """Every claim of a group, sorted by name, then distribution."""
        return tuple(
            provider for name in self.names(group) for provider in self.providers_of(name, group)
        )

    def providers_of(self, name: str, group: Group = Group.MODELS) -> tuple[Provider, ...]:
        """Claims on one name, sorted by distribution; empty when nobody claims it."""
        if (group, name) not in self._providers:
            claims = sorted(self._claims[group].get(name, ()), key=lambda claim: claim.key)
            chosen = self._chosen(name, claims) if group.names_classes else ""
            self._providers[group, name] = tuple(self._provider(c, group, chosen) for c in claims)
        return self._providers[group, name]

    def installed(self, provider: Provider) -> Plugin | None:
        """The plugin behind a provider; None for an external package."""
        if provider.origin is Origin.EXTERNAL:
            return None
        key = normalised(provider.distribution)
        return next((p for p in self.installation.plugins if p.key == key), None)

    def near(self, name: str, group: Group = Group.MODELS) -> tuple[str, ...]:
        """Claimed names that look like one, best first."""
        return near_names(name, self._claims[group])

    def tombstone(self, architecture: str) -> str:
        """The distribution known to serve an architecture; empty when none is known."""
        return self.installation.tombstones.get(architecture, "")

    def plugin_problems(self) -> tuple[Problem, ...]:
        """Faults of plugins and external packages, beyond those of single providers."""
        of_plugins = (
            Problem(plugin.installed.label, fault)
            for plugin in self.plugins()
            for fault in plugin.faults
        )
        return (*of_plugins, *self.external_problems())

    def external_problems(self) -> tuple[Problem, ...]:
        """Faults of the external packages that the settings name."""
        return tuple(
            Problem(self.settings.external_by, fault)
            for package in self.external_packages()
            for fault in package.faults
        )

    @cached_property
    def _unmatched(self) -> tuple[Problem, ...]:
        targets = {
            name: [claim.entry.module for claim in claims]
            for name, claims in self._claims[Group.MODELS].items()
        }
        names = {name for claims in self._claims.values() for name in claims}
        makers = {
            claim.key
            for by_name in self._claims.values()
            for claims in by_name.values()
            for claim in claims
        }
        installed = {plugin.key for plugin in self.installation.plugins}
        makers |= {normalised(name) for name in self.settings.external}
        return tuple(unmatched_settings(self.settings, targets, names, installed, makers))

    def setting_problems(self) -> tuple[Problem, ...]:
        """Names in the settings that match nothing, and so have no effect."""
        return self._unmatched

    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong and belongs to no provider."""
        return (*self.plugin_problems(), *self.setting_problems())

    def _add(self, group: Group, claim: Claim) -> None:
        self._claims[group].setdefault(claim.entry.name, []).append(claim)

    def _chosen(self, name: str, claims: Sequence[Claim]) -> str:
        """The claimant that the settings choose; empty where nothing is to be chosen."""
        claimants = {claim.key for claim in claims}
        exact = self.settings.chosen(name)
        if exact:
            return exact if exact in claimants else ""
        preferred = claimants & self.settings.preferred()
        return preferred.pop() if len(preferred) == 1 and len(claimants) > 1 else ""

    def _provider(self, claim: Claim, group: Group, chosen: str) -> Provider:
        installed = claim.plugin.installed if claim.plugin else Installed(claim.maker)
        return Provider(
            name=claim.entry.name,
            module=claim.entry.module,
            attr=claim.entry.attr,
            extras=claim.entry.extras,
            distribution=installed.name,
            version=installed.version,
            reasons=self._reasons(claim, group, chosen, installed),
            group=group,
            origin=claim.origin,
            variable=self.settings.external_by if claim.origin is Origin.EXTERNAL else "",
            found=claim.found,
        )

    def _reasons(
        self, claim: Claim, group: Group, chosen: str, installed: Installed
    ) -> tuple[Reason, ...]:
        """Why a claim cannot serve. Requirements are looked at only if all else is well."""
        entry = claim.entry
        reasons = [*self._by_settings(claim, group, chosen)]
        if entry.name in RESERVED.get(group, ()):
            problem = f"{entry.name!r} is archzoo's own {group.noun}"
            fix = "report it to the distribution's author"
            reasons.append(Reason(ReasonCode.NAME_RESERVED, problem, fix))
        faults = (installed.fault, entry.fault)
        reasons += [fault for fault in faults if fault is not None]
        if not reasons:
            return self.installation.requirements.unmet(installed, entry.extras)
        return tuple(reasons)

    def _by_settings(self, claim: Claim, group: Group, chosen: str) -> Iterable[Reason]:
        """Why the user does not want a claim."""
        name, key = claim.entry.name, claim.key
        if claim.plugin is not None and not self.settings.selects(key):
            problem = f"{key} is not in {PLUGINS_VARIABLE}"
            yield Reason(ReasonCode.NOT_SELECTED, problem, "add it to that list")
        if group is Group.MODELS and name in self.settings.disabled:
            problem = f"{name} is in {self.settings.disabled_by}"
            yield Reason(ReasonCode.DISABLED, problem, "remove it from that list")
        if chosen and key != chosen:
            problem = f"{self.settings.prefer_by} gives {name} to {chosen}"
            yield Reason(ReasonCode.NOT_CHOSEN, problem, "change that list to use this one")


def catalog() -> Catalog:
    """The catalog of this process: scanned once for each ``sys.path``.

    Raises:
        ConfigError: an environment variable that cannot be understood.
    """
    return _catalog_under(Settings.from_environ(), installation(tuple(sys.path)))


@lru_cache(maxsize=8)  # a program that keeps changing its environment must not collect catalogs
def _catalog_under(settings: Settings, scanned: Installation) -> Catalog:
    return Catalog(settings=settings, scanned=scanned)
