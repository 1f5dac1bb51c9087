"""The screen of ``doctor``: the machine, the settings, every plugin, what is broken, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..registry import Provider, ProviderState, fingerprint
from ..registry.scan import Plugin
from ..version import __version__
from . import layout
from .doctor import Report, conclusion, variables
from .listing import counted
from .machine import Machine
from .probing import Probe

_SILENT = (ProviderState.READY, ProviderState.BROKEN)  # nothing to say; said further down


def as_text(report: Report, columns: int) -> str:
    """The whole report.

    Args:
        report: what was found.
        columns: width of the page.
    """
    blocks = [
        layout.fields(_surroundings(report), columns),
        list(_settings(report, columns)),
        list(_plugins(report, columns)),
        list(_external(report, columns)),
        list(_contested(report, columns)),
        list(_probes(report.probes or (), columns)),
        list(_broken(report, columns)),
        layout.wrapped(conclusion(report), columns),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _surroundings(report: Report) -> Iterator[tuple[str, str]]:
    machine = report.machine
    yield "archzoo", __version__
    yield "fingerprint", fingerprint(report.catalog)[:16]
    yield "python", f"{machine.python} ({machine.executable})"
    yield "platform", machine.platform
    for name, version in machine.libraries.items():
        yield name, version or "not installed"
    yield "threads", f"{machine.usable} of {machine.cpus} CPUs usable; {_limits(machine)}"
    found = ", ".join(machine.devices.found) or "none seen"
    yield "devices", f"{found} ({machine.devices.how})"
    if machine.visible is not None:
        yield "visible", f"CUDA_VISIBLE_DEVICES={machine.visible}"


def _limits(machine: Machine) -> str:
    return ", ".join(f"{name} {value or 'unset'}" for name, value in machine.threads.items())


def _settings(report: Report, columns: int) -> Iterator[str]:
    found = variables()
    yield "variables" if found else "variables: none set"
    for each in found:
        note = f" (read as {each.alias_of})" if each.alias_of else ""
        if each.overruled_by:
            note = f" (has no effect: {each.overruled_by} is set)"
        yield from layout.wrapped(f"{each.name}={each.value}{note}", columns, 2, 2)
    for problem in report.catalog.setting_problems():
        yield from layout.problem_lines(problem, columns)


def _plugins(report: Report, columns: int) -> Iterator[str]:
    plugins = report.catalog.installation.plugins
    yield f"plugins: {len(plugins)}"
    claims: dict[str, list[Provider]] = {}
    for each in report.providers:
        plugin = report.catalog.installed(each)
        claims.setdefault(plugin.key if plugin else "", []).append(each)
    for plugin in plugins:
        yield from _plugin(plugin, claims.get(plugin.key, []), columns)


def _plugin(plugin: Plugin, claims: Sequence[Provider], columns: int) -> Iterator[str]:
    states = counted(claims) or "no claim"
    faults = ", broken" if plugin.faults else ""
    yield f"  {layout.printable(plugin.installed.label)}: {states}{faults}"
    places = [("in", plugin.place), ("hides", "\n".join(plugin.shadowed))]
    yield from layout.fields(places, columns, 4)
    yield from _told(claims, columns)


def _told(claims: Sequence[Provider], columns: int) -> Iterator[str]:
    """Claims with something to say; those with the same reasons together."""
    told = [each for each in claims if each.state not in _SILENT]
    for reasons, group in groupby(told, key=lambda each: each.reasons):
        members = list(group)
        names = ", ".join(each.name for each in members)
        yield from layout.wrapped(f"{names}: {members[0].state}", columns, 4, 2)
        for reason in reasons:
            yield from layout.reason_lines(reason, columns, 6, code=True)


def _external(report: Report, columns: int) -> Iterator[str]:
    packages = report.catalog.external_packages()
    if packages:
        yield f"external packages: {len(packages)}"
    for package in packages:
        names = (
            ", ".join(entry.name for entry in package.entries) or "nothing that its source tells"
        )
        yield from layout.wrapped(f"{package.name} claims {names}", columns, 2, 2)
        for module in package.undecided:
            yield from layout.wrapped(f"only importing {module} tells what it claims", columns, 4)
        mine = [each for each in report.providers if each.distribution == package.name]
        yield from _told([each for each in mine if not report.catalog.installed(each)], columns)


def _contested(report: Report, columns: int) -> Iterator[str]:
    if report.contested:
        yield f"contested: {len(report.contested)}"
    for each in report.contested:
        labels = " and ".join(claim.label for claim in each.candidates)
        yield from layout.wrapped(f"{each.name} is claimed by {labels}", columns, 2, 2)
        yield from layout.wrapped(f"fix: {each.hint}", columns, 4, 5)


def _probes(probes: Sequence[Probe], columns: int) -> Iterator[str]:
    if not probes:
        return
    yield from layout.table(
        ("IMPORT", "SECONDS", "PROVIDER"),
        [(each.outcome, f"{each.seconds:7.2f}", each.target.label) for each in probes],
        [list(_remarks(each, columns)) for each in probes],
        columns,
    )


def _remarks(probe: Probe, columns: int) -> Iterator[str]:
    """Notes; and why a probe was skipped. Failures are told with what is broken."""
    told = (*probe.reasons, *probe.notes) if probe.outcome == "skipped" else probe.notes
    for each in told:
        yield from layout.reason_lines(each, columns, 4, code=True)


def _broken(report: Report, columns: int) -> Iterator[str]:
    if report.faults:
        yield f"broken: {len(report.faults)}"
    for (culprit, reason), group in groupby(
        report.faults, lambda each: (each.culprit, each.reason)
    ):
        concerns = ", ".join(each.concerns for each in group if each.concerns)
        yield from layout.wrapped(": ".join(filter(None, (culprit, concerns))), columns, 2, 2)
        yield from layout.reason_lines(reason, columns, 4, code=True)
