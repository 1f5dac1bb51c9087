"""What a plugin needs, against what is installed, before any of its code runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..version import __version__
from .provider import Reason, ReasonCode
from .scan import Installed, find_installed

_CORE = "archzoo"

# Hostile metadata makes packaging raise ValueError in several classes; deep nesting exhausts
# its recursive parser.
_UNPARSABLE = (ValueError, RecursionError)


class Requirements:
    """Answers which requirements of a distribution are not met.

    Args:
        path: places where distributions are installed, as ``sys.path``.
    """

    def __init__(self, path: Sequence[str]) -> None:
        """Remember the places; nothing is read yet."""
        self._path = tuple(path)
        self._found: dict[str, Installed | None] = {}

    def unmet(self, plugin: Installed, extras: Sequence[str]) -> tuple[Reason, ...]:
        """Requirements of a plugin that are missing or out of range.

        Looked at are the plugin's own mandatory requirements, those of the extras given, and,
        where a requirement itself asks for an extra (``archzoo[gguf]``, or the plugin's own
        ``foo[all]``), what that extra adds.

        Args:
            plugin: the distribution.
            extras: normalised names of its extras that are needed too.
        """
        reasons = {
            _undeclared(plugin, extra): None for extra in extras if extra not in plugin.extras
        }
        pending: list[tuple[Installed, str]] = [(plugin, extra) for extra in ("", *extras)]
        for owner, extra in pending:  # grows while it is walked
            for line in owner.requires:
                try:
                    if not _applies(line, extra):
                        continue
                    requirement = _parse(line)
                    installed = self._find(requirement.name)
                    reason = _judge(plugin, requirement, installed)
                except _UNPARSABLE:
                    reasons[_unreadable(owner, line)] = None
                    continue
                if reason is not None:
                    reasons[reason] = None
                elif installed is not None and requirement.extras:
                    wanted = [(installed, canonicalize_name(e)) for e in requirement.extras]
                    pending += sorted(set(wanted) - set(pending), key=lambda pair: pair[1])
        return tuple(reasons)

    def _find(self, name: str) -> Installed | None:
        """The installed distribution of that name; the running core counts as itself."""
        if name not in self._found:
            key = canonicalize_name(name)
            found = find_installed(key, self._path)
            if key == _CORE:
                found = replace(found or Installed(_CORE), version=__version__, fault=None)
            self._found[name] = found
        return self._found[name]


def declared_as(plugin: Installed, module: str) -> tuple[str, str] | None:
    """How a distribution declares what an import misses.

    Names are compared as pip compares them, so ``flash_attn`` is found under ``flash-attn``.

    Args:
        plugin: the distribution whose module was being imported.
        module: dotted name of the module that is not there.

    Returns:
        The requirement and the command that mends it; None when the distribution never said
        that it needs such a thing.
    """
    wanted = canonicalize_name(module.partition(".")[0])
    for extra in ("", *sorted(plugin.extras)):
        for line in plugin.requires:
            try:
                if canonicalize_name(_parse(line).name) != wanted or not _applies(line, extra):
                    continue
            except _UNPARSABLE:
                continue
            needed = _without_marker(_parse(line))
            package = f"{plugin.name}[{extra}]" if extra else needed
            return needed, f"pip install {shlex.quote(package)}"
    return None


@lru_cache(maxsize=4096)
def _parse(line: str) -> Requirement:
    return Requirement(line)


def _applies(line: str, extra: str) -> bool:
    """Whether a requirement is mandatory (extra is empty), or is what this extra adds."""
    always = _holds(line, "")
    return always if not extra else not always and _holds(line, extra)


@lru_cache(maxsize=4096)
def _holds(line: str, extra: str) -> bool:
    """Whether a requirement's marker holds here when one extra, or none, is asked for."""
    marker = _parse(line).marker
    return marker is None or marker.evaluate({"extra": extra})


def _judge(
    plugin: Installed, requirement: Requirement, installed: Installed | None
) -> Reason | None:
    """Why an installed distribution does not meet a requirement; None when it does."""
    if installed is not None and _in_range(requirement.specifier, installed.version):
        return None
    wanted = _without_marker(requirement)
    install = f"run: pip install {shlex.quote(wanted)}"
    if installed is None:
        problem = f"{wanted!r} is not installed"
        return Reason(ReasonCode.REQUIREMENT_MISSING, problem, install)
    problem = f"{installed.label} is installed, {wanted!r} is needed"
    if canonicalize_name(installed.name) != _CORE:
        return Reason(ReasonCode.REQUIREMENT_VERSION, problem, install)
    other = f"or install a version of {plugin.name} that is built for {installed.label}"
    return Reason(ReasonCode.CORE_VERSION, problem, f"{install}, {other}")


@lru_cache(maxsize=4096)
def _in_range(specifier: SpecifierSet, version: str) -> bool:
    """Whether a version lies in a range; development and pre-releases count as installed."""
    if not specifier:
        return True
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _without_marker(requirement: Requirement) -> str:
    """The requirement as pip takes it on the command line."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    place = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    return f"{requirement.name}{extras}{place}"


def _undeclared(plugin: Installed, extra: str) -> Reason:
    return Reason(
        ReasonCode.EXTRA_UNDECLARED,
        f"its entry point needs the extra {extra!r}, which {plugin.label} does not declare",
        "report it to the distribution's author",
    )


def _unreadable(owner: Installed, line: str) -> Reason:
    shown = line if len(line) <= 80 else f"{line[:77]}..."
    return Reason(
        ReasonCode.METADATA_INVALID,
        f"requirement {shown!r} of {owner.label} cannot be read",
        "report it to the distribution's author",
    )
