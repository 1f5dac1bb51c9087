"""ConfigLedger: what became of every field of a config file, and where values came from.

A field of the file is *consumed* (a value of ModelConfig rests on it), *ignored* by a named rule,
or *unknown* to every reader and rule. A value the file does not state is *defaulted*, from the family or from another field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fate = Literal["consumed", "defaulted", "ignored", "unknown"]

NULL = "null"
"""Rule of a field that is explicitly null, which means absent."""

ASKED = "ignore_fields"
"""Rule of a field that whoever loads the checkpoint asked to ignore."""


@dataclass(frozen=True)
class LedgerEntry:
    """One field and its fate.

    Args:
        field: dotted name as the file spells it (defaulted: the ModelConfig field).
        fate: what became of it.
        detail: consumed: the ModelConfig field it feeds; defaulted: from where; ignored: the rule;
            unknown: that no rule knows it.
        value: the value, shortened, for screens.
    """

    field: str
    fate: Fate
    detail: str
    value: str


@dataclass(frozen=True)
class ConfigLedger:
    """Every field of one config file with its fate, in reading order.

    Args:
        entries: one for each field read, defaulted or ignored.
        unread: fields without a fate; a finished ledger has none.
    """

    entries: tuple[LedgerEntry, ...] = ()
    unread: tuple[str, ...] = ()

    def _of(self, fate: Fate) -> dict[str, str]:
        return {entry.field: entry.detail for entry in self.entries if entry.fate == fate}

    @property
    def consumed(self) -> dict[str, str]:
        """Field of the file -> field of ModelConfig that rests on it."""
        return self._of("consumed")

    @property
    def defaulted(self) -> dict[str, str]:
        """Field of ModelConfig -> where its value came from."""
        return self._of("defaulted")

    @property
    def ignored(self) -> dict[str, str]:
        """Field of the file -> rule that ignores it."""
        return self._of("ignored")

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields that no reader and no rule knows; nothing depends on them."""
        return tuple(self._of("unknown"))

    @property
    def overruled(self) -> tuple[str, ...]:
        """Fields ignored because whoever loads the checkpoint asked for it."""
        return tuple(field for field, rule in self.ignored.items() if rule == ASKED)

    def __str__(self) -> str:
        """One line for each entry."""
        return "\n".join(
            f"{entry.field} = {entry.value}: {entry.fate} ({entry.detail})"
            for entry in self.entries
        )
