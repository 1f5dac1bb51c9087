"""Claim: one name that somebody wants to serve, before any setting is applied."""

from __future__ import annotations

from typing import NamedTuple

from ..naming import normalised
from .entries import Entry
from .provider import Origin
from .scan import Plugin


class Claim(NamedTuple):
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

    @property
    def key(self) -> str:
        """Normalised name of the maker, as settings give it."""
        return normalised(self.maker)
