"""Ties: parameters that share their elements, by identity or by declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import WeightError
from .parameters import ParameterTable


@dataclass(frozen=True, slots=True)
class TieCheck:
    """Two stored tensors that must be equal, because their parameters are tied.

    Args:
        tensor: the stored copy, not written.
        fed_by: the tensor that is written instead.
        parameter: what the copy would have filled.
        tied_to: the parameter that holds the elements.
    """

    tensor: str
    fed_by: str
    parameter: str
    tied_to: str

    @property
    def fault(self) -> str:
        """The line to report when they differ."""
        return (
            f"{self.tensor} and {self.fed_by} hold different values, but {self.parameter} is tied "
            f"to {self.tied_to} (tie_word_embeddings)"
        )


class Ties:
    """Groups of names that stand for the same elements, each with a root.

    Args:
        table: the model's parameters; names of one object are tied by identity.
        declared: tied parameter -> the parameter it shares elements with. Either may be absent
            on this rank; a tied parameter with storage of its own gets its own copy.

    Raises:
        WeightError: declared edges go round in a circle.
    """

    def __init__(self, table: ParameterTable, declared: Mapping[str, str]) -> None:
        """Settle who belongs to whom."""
        self._table = table
        edges = {table.first_name(a): table.first_name(b) for a, b in declared.items()}
        self._edges = {a: b for a, b in edges.items() if a != b}
        for name in self._edges:
            self.root(name)
        self._targets: dict[str, list[str]] = {}
        for name in self._edges:
            if name in table:
                self._targets.setdefault(self.root(name), []).append(name)
        here = [name for name in declared if name in table or name in table.alias]
        self.names = {name: self.root(name) for name in (*table.alias, *here)}
        self.names = {name: root for name, root in self.names.items() if name != root}

    def root(self, name: str) -> str:
        """The parameter that a name's elements belong to; the name itself when it is not tied."""
        name = self._table.first_name(name)
        seen = {name}
        while name in self._edges:
            name = self._edges[name]
            if name in seen:
                raise WeightError(
                    f"ties go round in a circle: {' -> '.join((*sorted(seen), name))}"
                )
            seen.add(name)
        return name

    def targets(self, root: str) -> list[str]:
        """Parameters with storage that the root's tensors fill: its own, and declared copies."""
        own = [root] if root in self._table else []
        return own + self._targets.get(root, [])
