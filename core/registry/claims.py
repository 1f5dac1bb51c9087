"""Claim: one name that somebody wants to serve, before any setting is applied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from packaging.utils import canonicalize_name

from .entries import Entry
from .provider import Origin
from .scan import Plugin


@dataclass(frozen=True)
class Claim:
    """An entry and who made it.

    Args:
        entry: the name and its target.
        maker: the distribution, or the import name of an external package.
        origin: where the claim was made.
        plugin: the distribution's metadata; None for an external package.
        found: the class, where a hook gave the class itself.
    """

    entry: Entry
    maker: str
    origin: Origin
    plugin: Plugin | None = None
    found: type | None = None

    @cached_property
    def key(self) -> str:
        """Normalised name of the maker, as settings give it."""
        return canonicalize_name(self.maker)
