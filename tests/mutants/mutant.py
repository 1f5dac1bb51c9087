"""A mutant: one small fault, planted by exact text, and the tests that must notice it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class StaleMutant(Exception):
    """The code has moved on: a mutant's old text is gone, or no longer unique."""


@dataclass(frozen=True)
class Mutant:
    """A fault of the kind that crashes nothing.

    Args:
        name: short, unique.
        stands_for: the real bug it imitates.
        file: path in the repository.
        edits: old text -> new text; each old text occurs exactly once in the file.
        killers: pytest node ids, each of which must fail by an assertion; without ``[...]`` any
            of its cases will do.
    """

    name: str
    stands_for: str
    file: str
    edits: Mapping[str, str]
    killers: tuple[str, ...]

    def plant(self, tree: Path) -> None:
        """Edit the file in a copy of the repository.

        Raises:
            StaleMutant: as ``planted``.
        """
        path = tree / self.file
        path.write_text(self.planted(path.read_text(encoding="utf-8")), encoding="utf-8")

    def planted(self, text: str) -> str:
        """The file's text with the fault in it.

        Raises:
            StaleMutant: an old text does not occur exactly once, or the edit changes nothing.
        """
        for old, new in self.edits.items():
            if text.count(old) != 1:
                raise StaleMutant(f"{self.file} holds {text.count(old)} times, not once: {old!r}")
            if old == new:
                raise StaleMutant(f"the edit changes nothing: {old!r}")
            text = text.replace(old, new)
        return text
