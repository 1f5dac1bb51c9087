"""doctor: everything archzoo depends on, every plugin, and what is wrong with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

from ..errors import ConfigError
from ..registry import (
    Catalog,
    Decision,
    Group,
    Provider,
    ProviderState,
    Reason,
    Verdict,
    catalog,
    decide,
    fingerprint,
)
from ..registry.decision import FIRST_PLUGIN
from ..registry.resolution import strict_verdict, unable
from ..registry.scan import Plugin
from ..settings import ALIASES, STRICT_VARIABLE, Settings, variables_in_force
from ..version import __version__
from .listing import counted
from .machine import Machine
from .probe import EXTERNAL
from .probing import Probe
from .records import (
    DoctorCode,
    Finding,
    Record,
    external_record,
    problem_record,
    provider_record,
    reason_record,
)


@dataclass(frozen=True)
class Variable:
    """An environment variable that the registry obeys, or would.

    Args:
        name: as it is set.
        value: as it is set.
        alias_of: archzoo's own name for it; empty for that name itself.
        overruled_by: the variable that is obeyed in its place; empty when this one is obeyed.
    """

    name: str
    value: str
    alias_of: str
    overruled_by: str


@dataclass(frozen=True)
class Fault:
    """Something enabled that is broken.

    Args:
        culprit: the distribution, package or variable.
        concerns: the claim it is about; empty when it is about all of them.
        reason: what is wrong.
    """

    culprit: str
    concerns: str
    reason: Reason | Finding


@dataclass(frozen=True)
class Report:
    """What was found.

    Args:
        machine: the machine and the interpreter.
        catalog: who claims what.
        settings_fault: why the variables cannot be understood; the catalog is then the one of no
            settings at all.
        probes: what importing each provider came to; None when that was not asked for.
    """

    machine: Machine
    catalog: Catalog
    settings_fault: ConfigError | None = None
    probes: tuple[Probe, ...] | None = None

    @cached_property
    def providers(self) -> tuple[Provider, ...]:
        """Every claim that leads to code, of every group."""
        groups = (group for group in Group if group is not Group.TOMBSTONES)
        return tuple(each for group in groups for each in self.catalog.providers(group))

    @cached_property
    def contested(self) -> tuple[Decision, ...]:
        """Names that several claim and nothing chooses between."""
        decisions = (
            decide(self.catalog, (name,), group)
            for group in Group
            if group.names_classes
            for name in self.catalog.names(group)
        )
        return tuple(each for each in decisions if each.verdict is Verdict.CONTESTED)

    def probe_of(self, group: str, name: str, distribution: str) -> Probe | None:
        """What importing one target came to; None when it was not imported."""
        wanted = (group, name, distribution)
        return next((each for each in self.probes or () if each.target.key == wanted), None)

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """Everything enabled that is broken; empty when all is fine."""
        return tuple(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.settings_fault is not None:
            error = self.settings_fault
            reason = Finding(
                DoctorCode.SETTING_INVALID, error.problem, "correct that variable, or unset it"
            )
            yield Fault(error.field, "", reason)
        stuck = unable(self.catalog) if self.catalog.settings.strict else ()
        if stuck:
            problem = strict_verdict(stuck).partition(";")[0]
            fix = f"mend or disable them, or unset {STRICT_VARIABLE}"
            yield Fault(STRICT_VARIABLE, "", Finding(DoctorCode.STRICT_REFUSES, problem, fix))
        for each in (*self.providers, *self.catalog.providers(Group.TOMBSTONES)):
            if each.state is ProviderState.BROKEN:
                yield from (Fault(each.label, each.name, reason) for reason in each.reasons)
        for fault in self.catalog.plugin_problems():
            yield Fault(fault.source, "", fault.reason)
        for probe in self.probes or ():
            if probe.outcome == "failed":
                who = f"{probe.target.distribution} {probe.target.version}".rstrip()
                concerns = probe.target.name or probe.target.target
                yield from (Fault(who, concerns, reason) for reason in probe.reasons)


def examine(machine: Machine) -> Report:
    """Everything but the probes; imports no plugin.

    Args:
        machine: the machine and the interpreter.
    """
    try:
        return Report(machine, catalog())
    except ConfigError as error:
        return Report(machine, Catalog(settings=Settings()), error)


def variables() -> tuple[Variable, ...]:
    """Variables that are set, with what became of each."""
    given, found = variables_in_force(), []
    owners = {alias: own for own, alias in ALIASES.items()}
    for name, value in given.items():
        own = owners.get(name, "")
        found.append(Variable(name, value, own, own if own in given else ""))
    return tuple(found)


def conclusion(report: Report) -> str:
    """The verdict in a sentence."""
    broken = len(report.faults)
    if broken:
        return f"{broken} {'thing is' if broken == 1 else 'things are'} broken, named above."
    if not report.catalog.installation.plugins and not report.providers:
        return f"Nothing is broken. No model plugin is installed; run: pip install {FIRST_PLUGIN}"
    contested = f" {len(report.contested)} contested, see above." if report.contested else ""
    probed = f"; {len(report.probes)} imported here" if report.probes else ""
    return f"Nothing is broken: {counted(report.providers)}{probed}.{contested}"


def as_record(report: Report) -> Record:
    """Everything, for programs."""
    source = report.catalog
    return {
        "archzoo": __version__,
        "machine": asdict(report.machine),
        "variables": [asdict(each) for each in variables()],
        "external": [
            {
                **external_record(package),
                "probe": _probe_record(report.probe_of(EXTERNAL, "", package.name)),
            }
            for package in source.external_packages()
        ],
        "plugins": [_plugin_record(report, plugin) for plugin in source.installation.plugins],
        "providers": [
            {
                **provider_record(each, source),
                "probe": _probe_record(
                    report.probe_of(
                        str(each.group),
                        each.name if each.group.names_classes else "",
                        each.distribution,
                    )
                ),
            }
            for each in report.providers
        ],
        "contested": [{"name": each.name, "fix": each.hint} for each in report.contested],
        "settings": [problem_record(each) for each in source.setting_problems()],
        "broken": [
            {"source": each.culprit, "name": each.concerns, **reason_record(each.reason)}
            for each in report.faults
        ],
        "fingerprint": fingerprint(source),
        "ok": not report.faults,
        "conclusion": conclusion(report),
    }


def _plugin_record(report: Report, plugin: Plugin) -> Record:
    return {
        "distribution": plugin.installed.name,
        "version": plugin.installed.version,
        "place": plugin.place,
        "shadowed": list(plugin.shadowed),
        "enabled": report.catalog.settings.selects(plugin.key),
        "faults": [reason_record(fault) for fault in plugin.faults],
    }


def _probe_record(probe: Probe | None) -> Record | None:
    """``ok`` and ``outcome``, the first reason's own keys, all reasons, remarks as texts."""
    if probe is None:
        return None
    first = probe.reasons[0] if probe.reasons else Finding("", "", "")
    return {
        "ok": probe.outcome == "ok",
        "outcome": probe.outcome,
        **reason_record(first),
        "reasons": [reason_record(each) for each in probe.reasons],
        "remarks": [each.problem for each in probe.notes],
        "seconds": round(probe.seconds, 3),
    }
