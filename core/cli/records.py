"""Registry facts as plain objects for ``--json``: one shape in every command."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..registry import Catalog, Problem, Provider, Reason

if TYPE_CHECKING:
    from ..registry.external import ExternalPackage

Record = dict[str, Any]
"""A JSON object; its keys are listed in docs/commands.md and only ever added to."""


class DoctorCode(StrEnum):
    """Stable codes of what only ``doctor`` tells, beside those of the registry."""

    SETTING_INVALID = "setting-invalid"
    STRICT_REFUSES = "strict-refuses"
    # Imports in a process of their own that failed.
    IMPORT_TIMEOUT = "import-timeout"
    INTERPRETER_DIED = "interpreter-died"
    # Notes on imports that succeeded.
    PRINTS = "prints-at-import"
    WARNS = "warns-at-import"
    SLOW = "slow-import"
    HEAVY_HOOKS = "heavy-hook-module"
    OFFERS = "offers-at-run-time"


class Finding(NamedTuple):
    """A reason as it crosses from one process to another, or as only a probe can give it.

    Args:
        code: stable code.
        problem: what is wrong, with values.
        fix: what to do about it.
    """

    code: str
    problem: str
    fix: str


def finding(reason: Reason) -> Finding:
    """A registry reason as a finding."""
    return Finding(str(reason.code), reason.problem, reason.fix)


def reason_record(reason: Reason | Finding) -> Record:
    """``code``, ``problem``, ``fix``."""
    return {"code": str(reason.code), "problem": reason.problem, "fix": reason.fix}


def problem_record(problem: Problem) -> Record:
    """``source`` and the keys of its reason."""
    return {"source": problem.source, **reason_record(problem.reason)}


def provider_record(provider: Provider, catalog: Catalog) -> Record:
    """One claim: what, by whom, where, its state and why.

    Args:
        provider: the claim.
        catalog: where it came from; knows the place.
    """
    return {
        "group": str(provider.group),
        "architecture": provider.name,
        "distribution": provider.distribution,
        "version": provider.version,
        "target": provider.target,
        "origin": str(provider.origin),
        "place": place_of(provider, catalog),
        "state": str(provider.state),
        "reasons": [reason_record(reason) for reason in provider.reasons],
    }


def external_record(package: ExternalPackage) -> Record:
    """One external package: what its source tells."""
    return {
        "name": package.name,
        "claims": [entry.name for entry in package.entries],
        "undecided": list(package.undecided),
        "faults": [reason_record(fault) for fault in package.faults],
    }


def place_of(provider: Provider, catalog: Catalog) -> str:
    """Where the distribution's metadata lies; empty for an external package."""
    plugin = catalog.installed(provider)
    return plugin.place if plugin else ""
