"""doctor: every plugin, its state, and the surroundings it has to work in. Imports no plugin."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..registry import Catalog, Group, Problem, Provider, ProviderState, fingerprint
from ..settings import variables_in_force
from ..version import __version__
from .plain import (
    as_problem,
    as_provider,
    explained,
    pairs,
    problem_lines,
    table,
    wrapped,
)
from .probing import Finding, probe_all

_LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "pluggy", "gguf", "triton")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Checkup:
    """What doctor found.

    Args:
        catalog: what is installed, under the settings.
        findings: what imports told, by provider; empty without ``--probe``.
    """

    catalog: Catalog
    findings: dict[Provider, Finding] = field(default_factory=dict)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Every claim that leads to code, of every group."""
        groups = (group for group in Group if group is not Group.TOMBSTONES)
        return tuple(each for group in groups for each in self.catalog.providers(group))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong and belongs to no claim."""
        return (*self.catalog.plugin_problems(), *self.catalog.setting_problems())

    @property
    def faults(self) -> int:
        """How many enabled things are broken; what is merely skipped is none."""
        broken = sum(each.state is ProviderState.BROKEN for each in self.providers)
        failed = sum(finding.code != "" for finding in self.findings.values())
        return broken + failed + len(self.catalog.plugin_problems())


def examine(catalog: Catalog, probe_timeout: float | None = None) -> Checkup:
    """Look at everything that is installed.

    Args:
        catalog: what is installed, under the settings.
        probe_timeout: seconds that each import may take; None imports nothing.
    """
    found = Checkup(catalog)
    if probe_timeout is None:
        return found
    return Checkup(catalog, probe_all(found.providers, probe_timeout))


def as_text(found: Checkup) -> str:
    """Surroundings, plugins, problems; the last line is the verdict."""
    lines = pairs(_surroundings(found.catalog), indent=0)
    lines += _variables()
    lines += ["", *_plugins(found)]
    lines += problem_lines(found.problems)
    return "\n".join([*lines, "", *_verdict(found)])


def as_json(found: Checkup) -> str:
    """The same as an object."""
    content = {
        "surroundings": dict(_surroundings(found.catalog)),
        "variables": variables_in_force(),
        "providers": [
            {
                **as_provider(each),
                "place": _place(each, found.catalog),
                "probe": found.findings[each].as_json() if each in found.findings else None,
            }
            for each in found.providers
        ],
        "duplicates": [
            {"distribution": plugin.key, "kept": plugin.place, "shadowed": list(plugin.shadowed)}
            for plugin in found.catalog.plugins()
            if plugin.shadowed
        ],
        "problems": [as_problem(problem) for problem in found.problems],
        "faults": found.faults,
    }
    return json.dumps(content, indent=2)


def _surroundings(catalog: Catalog) -> list[tuple[str, str]]:
    return [
        ("archzoo", __version__),
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("interpreter", sys.executable),
        ("libraries", ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)),
        ("threads", _threads()),
        ("devices", _devices()),
        ("fingerprint", fingerprint(catalog)[:16]),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _threads() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = [f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ]
    return ", ".join([f"{usable} of {os.cpu_count()} processors usable", *limits])


def _devices() -> str:
    """GPUs the driver lists; asking torch would import it."""
    try:
        count = len(list(_NVIDIA.iterdir()))
    except OSError:
        count = 0
    return f"cpu, {count} NVIDIA GPUs" if count else f"cpu ({_NVIDIA} lists no GPU)"


def _variables() -> list[str]:
    known = variables_in_force()
    if not known:
        return ["variables    none set"]
    return ["variables", *pairs((name, value or "(empty)") for name, value in known.items())]


def _plugins(found: Checkup) -> list[str]:
    if not found.providers:
        return ["No plugin is installed; run: pip install archzoo-llama"]
    rows: list[tuple[Sequence[str], Sequence[str]]] = []
    for each in found.providers:
        finding = found.findings.get(each)
        notes = [explained(reason) for reason in each.reasons]
        state = str(each.state)
        if finding is not None:
            state = "works" if finding.code == "" else "fails"
            notes += finding.lines()
        rows.append(((each.name, each.group.noun, each.label, state), notes))
    lines = table(("NAME", "KIND", "PLUGIN", "STATE"), rows)
    places = dict.fromkeys((each.label, _place(each, found.catalog)) for each in found.providers)
    lines += ["", "Installed in:", *pairs(place for place in places if place[1])]
    for plugin in found.catalog.plugins():
        for copy in plugin.shadowed:
            lines += wrapped(f"{plugin.key}: the copy in {copy} is not used", 4, "  - ")
    return lines


def _place(provider: Provider, catalog: Catalog) -> str:
    plugin = catalog.installed(provider)
    return plugin.place if plugin else ""


def _verdict(found: Checkup) -> list[str]:
    states = [each.state for each in found.providers]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in ProviderState if state in states
    )
    summary = f"{len(states)} entries: {counts or 'none'}"
    if found.faults:
        return wrapped(f"{summary}. {found.faults} faults to mend, see above")
    if found.findings:
        return wrapped(f"{summary}. All {len(found.findings)} that are ready were imported")
    return wrapped(f"{summary}. Nothing is broken; --probe also imports what is ready")
