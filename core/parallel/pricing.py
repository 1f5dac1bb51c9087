"""What a change of placement costs: integer femtoseconds, and the bytes each rank brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .links import CostTable
from .placement import Rules, Term

_PASSES = {"merge": (3, 0), "post": (2, 0), "select": (2, 0), "spread": (1, 1)}
"""How often rows are read or written in a rank's own memory: those before, those after."""


class Traffic(NamedTuple):
    """One rank's part in a collective, as a communicator would record it."""

    kind: str
    group: str
    nbytes: int


@dataclass(frozen=True)
class Pricing:
    """Costs on one machine, for rows of one width.

    Args:
        rules: axes and layout.
        table: of the machine.
        width: bytes of one row.
    """

    rules: Rules
    table: CostTable
    width: int

    def traffic(self, op: str, src: Term, dst: Term, rows: tuple[int, ...]) -> Traffic | None:
        """What a rank brings to a step's collective; None for local steps.

        Args:
            op, src, dst: the step.
            rows: that the rank holds at every depth.
        """
        run = self.rules.meets(op, src, dst)
        if run is None:
            return None
        summed = op == "all_gather" and self.rules.uneven(dst.split)
        kind, depth = ("all_reduce", dst.split) if summed else (op, src.split)
        return Traffic(kind, self.rules.axes.group(*run), rows[depth] * self.width)

    def change(self, op: str, src: Term, dst: Term, rows: tuple[int, ...]) -> int:
        """Femtoseconds of a step; never 0, so that of equal plans the shorter one is cheaper."""
        axes, run = self.rules.axes, self.rules.meets(op, src, dst)
        before, after = _PASSES.get(op, (0, 0))
        if op == "all_gather" and self.rules.uneven(dst.split):
            before, after = _PASSES["spread"]
        cost = 1 + self.touch(before * rows[src.split] + after * rows[dst.split])
        met = self.traffic(op, src, dst, rows)
        if run is not None and met is not None:
            names, ranks = axes.names[slice(*run)], axes.size(*run)
            cost += self.table.meeting(met.kind, names, ranks, met.nbytes)
        return cost

    def touch(self, rows: int) -> int:
        """Femtoseconds of an operation that reads or writes so many rows here; 0 for none."""
        return self.table.kernel + self.table.moved(rows * self.width) if rows else 0
