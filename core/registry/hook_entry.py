"""One hook plugin: its line in the metadata, and the import of what that line names."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import NamedTuple

import pluggy

from .entries import Entry
from .hook_checks import invalid, registered, version_fault
from .provider import Reason, ReasonCode, spelled

CONTAINED = (Exception, SystemExit)
"""What a plugin may raise without an end to the engine; a user's interrupt passes."""


class HookEntry(NamedTuple):
    """One entry point of the group of hooks.

    Args:
        distribution: name and version, as messages give them.
        key: normalised name of the distribution.
        entry: the line; its ``attr`` is empty when the module itself is the plugin.
        reasons: why it must not be loaded, judged from metadata and settings.
    """

    distribution: str
    key: str
    entry: Entry
    reasons: tuple[Reason, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether its hooks may be loaded."""
        return not self.reasons and self.entry.fault is None

    @property
    def line(self) -> str:
        """The entry as ``entry_points.txt`` spells it."""
        return f"{self.entry.name} = {spelled(self.entry.module, self.entry.attr)}"


def load_hooks(entry: HookEntry) -> pluggy.PluginManager | tuple[Reason, ...]:
    """Import a plugin and check its hooks."""
    try:
        module = import_module(entry.entry.module)
        plugin = attrgetter(entry.entry.attr)(module) if entry.entry.attr else module
    except CONTAINED as error:
        problem = f"'{entry.line}' cannot be loaded: {cause_of(error)}"
        return (Reason(ReasonCode.HOOK_LOAD_FAILED, problem, "repair or uninstall it"),)
    try:
        fault = version_fault(module)
        return registered(plugin, entry.line) if fault is None else (fault,)
    except CONTAINED as error:
        problem = f"the hooks of '{entry.line}' cannot be read: {cause_of(error)}"
        return (invalid(problem),)


def cause_of(error: BaseException) -> str:
    """Type and message on one line."""
    try:
        message = " ".join(str(error).split())
    except CONTAINED:
        message = "(a message that cannot be read)"
    return f"{type(error).__name__}: {message}".rstrip(": ")
