"""Installation: what is found on one path, read once and shared by every catalog over it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from .groups import Group
from .requirements import Requirements
from .scan import Installed, Plugin, find_copies, read_copy, read_plugins

if TYPE_CHECKING:
    from .external import ExternalPackage

_TOMBSTONES = os.path.join(os.path.dirname(__file__), "tombstones.json")


class Installation:
    """Plugins on a path, before any setting is applied.

    Args:
        path: places to search for distributions and packages, as ``sys.path``.
    """

    def __init__(self, path: Sequence[str]) -> None:
        """Read the entry points of every distribution, once."""
        self.path = tuple(path)
        self._changed_at = [_changed_at(place) for place in self.path]
        self._copies = find_copies(self.path)
        self.plugins: tuple[Plugin, ...] = read_plugins(self._copies)
        self.requirements = Requirements(self._copies)
        self._external: dict[str, ExternalPackage] = {}

    def is_stale(self) -> bool:
        """Whether something was installed or removed since, as far as the folders tell."""
        return self._changed_at != [_changed_at(place) for place in self.path]

    def installed(self, name: str) -> Installed | None:
        """What a distribution, plugin or not, says of itself; None when it is not installed.

        Args:
            name: in any spelling.
        """
        return read_copy(name, self._copies)

    def external(self, name: str) -> ExternalPackage:
        """A package that a variable names, read statically on first use."""
        if name not in self._external:
            from .external import read_package  # only users of the variable pay for it

            self._external[name] = read_package(name, self.path)
        return self._external[name]

    @cached_property
    def tombstones(self) -> dict[str, str]:
        """Architecture -> distribution that serves it; plugins extend what archzoo ships."""
        import json  # only misses need it

        with open(_TOMBSTONES, encoding="utf-8") as file:
            known: dict[str, str] = json.load(file)
        for plugin in self.plugins:
            for entry in plugin.entries.get(Group.TOMBSTONES, ()):
                if entry.fault is None:
                    known.setdefault(entry.name, entry.module.replace("_", "-"))
        return known


@lru_cache(maxsize=8)  # a program that keeps changing sys.path must not collect scans
def installation(path: tuple[str, ...]) -> Installation:
    """What is found on a path; scanned once for each, until ``forget_scans``.

    Args:
        path: places to search, as ``sys.path``.
    """
    return Installation(path)


def forget_scans() -> None:
    """Scan anew at the next question."""
    installation.cache_clear()


def _changed_at(place: str) -> int:
    """When an entry was last added to or removed from a folder, in ns; 0 where there is none."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0
