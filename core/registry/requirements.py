"""What a plugin needs, against what is installed, before any of its code runs."""

from __future__ import annotations

from collections.abc import Sequence

from ..naming import normalised
from ..version import __version__
from .needs import UNPARSABLE, Need, parse_need
from .provider import Reason, ReasonCode
from .scan import Copies, Installed, read_copy

_CORE = "archzoo"


class Requirements:
    """Answers which requirements of a distribution are not met.

    Args:
        copies: every installed distribution.
    """

    def __init__(self, copies: Copies) -> None:
        """Remember the places; nothing is read yet."""
        self._copies = copies
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
                    need = parse_need(line)
                    if not need.applies(extra):
                        continue
                    installed = self._find(need.name)
                    reason = _judge(plugin, need, installed)
                except UNPARSABLE:
                    reasons[_unreadable(owner, line)] = None
                    continue
                if reason is not None:
                    reasons[reason] = None
                elif installed is not None and need.extras:
                    wanted = {(installed, normalised(extra)) for extra in need.extras}
                    pending += sorted(wanted - set(pending), key=lambda pair: pair[1])
        return tuple(reasons)

    def _find(self, name: str) -> Installed | None:
        """The installed distribution of that name; the running core counts as itself."""
        if name not in self._found:
            found = read_copy(name, self._copies)
            if normalised(name) == _CORE:
                found = (found or Installed(_CORE))._replace(version=__version__, fault=None)
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
    wanted = normalised(module.partition(".")[0])
    for extra in ("", *sorted(plugin.extras)):
        for line in plugin.requires:
            try:
                need = parse_need(line)
                if normalised(need.name) != wanted or not need.applies(extra):
                    continue
            except UNPARSABLE:
                continue
            package = f"{plugin.name}[{extra}]" if extra else need.spelled
            return need.spelled, f"pip install {_quoted(package)}"
    return None


def _judge(plugin: Installed, need: Need, installed: Installed | None) -> Reason | None:
    """Why an installed distribution does not meet a requirement; None when it does."""
    if installed is not None and need.allows(installed.version):
        return None
    install = f"run: pip install {_quoted(need.spelled)}"
    if installed is None:
        problem = f"{need.spelled!r} is not installed"
        return Reason(ReasonCode.REQUIREMENT_MISSING, problem, install)
    problem = f"{installed.label} is installed, {need.spelled!r} is needed"
    if normalised(installed.name) != _CORE:
        return Reason(ReasonCode.REQUIREMENT_VERSION, problem, install)
    other = f"or install a version of {plugin.name} that is built for {installed.label}"
    return Reason(ReasonCode.CORE_VERSION, problem, f"{install}, {other}")


def _quoted(package: str) -> str:
    """A requirement as a shell takes it."""
    from shlex import quote  # only faults need it

    return quote(package)


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
