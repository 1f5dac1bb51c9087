"""Axes: the ranks of one pipeline stage as a small grid, and which Group spans which part of it.

Rows are split over the first axes only, so the row set of a rank is told by a depth: the number of
axes over which rows are split. Depth 0 is all rows; the attention depth is this attention group's;
one slice for each rank lies deepest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import BoundaryError, TopologyError
from .group import Groups
from .topology import Topology

RowSet = Literal["all", "attn", "slice", "moe"]
"""Rows of every attention group, of this rank's attention group, of this rank alone. ``moe``: all,
or where experts are dealt to ranks (``ep``) this group's, which exchanges them with the others."""


@dataclass(frozen=True)
class Axes:
    """Axes of one pipeline stage that have more than one rank, outermost first.

    Args:
        names: for messages and for link costs.
        sizes: ranks along each.
        attn_depth: the first axes, over which attention groups differ.
        groups: (first axis, end axis, name of the Group that spans them).
        moe_depth: depth of the rows that experts are given.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    attn_depth: int
    groups: tuple[tuple[int, int, str], ...]
    moe_depth: int = 0

    @staticmethod
    def of_groups(groups: Groups) -> Axes:
        """The axes that a rank's groups span; engines with groups of their own have no topology.

        Raises:
            TopologyError: sizes of tp, attn_tp and attn_dp that do not go together.
        """
        tp, attn_tp, attn_dp = (groups[name].size for name in ("tp", "attn_tp", "attn_dp"))
        if tp != attn_tp * attn_dp:
            raise TopologyError(
                f"groups tp={tp}, attn_tp={attn_tp}, attn_dp={attn_dp}: tp must be attn_tp * "
                "attn_dp; give groups of one topology"
            )
        ep = groups["ep"].size if "ep" in groups.by_name else 1
        return Axes.of(Topology(tp=tp, attn_dp=attn_dp, ep=ep))

    @staticmethod
    def of(topology: Topology) -> Axes:
        """attn_dp, then attn_tp."""
        both = (("attn_dp", topology.attn_dp), ("attn_tp", topology.attn_tp))
        axes = [(name, size) for name, size in both if size > 1]
        names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
        single = () if len(axes) == 1 else tuple((i, i + 1, name) for i, name in enumerate(names))
        depth = names.count("attn_dp")
        moe_depth = depth if topology.ep > 1 else 0
        return Axes(names, sizes, depth, ((0, len(axes), "tp"), *single), moe_depth)

    @property
    def count(self) -> int:
        """Number of axes."""
        return len(self.sizes)

    def size(self, start: int, stop: int) -> int:
        """Ranks of the axes [start, stop)."""
        return math.prod(self.sizes[start:stop])

    def group(self, start: int, stop: int) -> str:
        """Name of the Group over the axes [start, stop).

        Raises:
            BoundaryError: no group spans exactly these.
        """
        for first, end, name in self.groups:
            if (first, end) == (start, stop):
                return name
        raise BoundaryError(
            f"no group spans axes {start} to {stop} of {self.names}; give Axes one in groups="
        )

    def depth(self, rows: RowSet) -> int:
        """Axes over which these rows are split."""
        depths = {"all": 0, "attn": self.attn_depth, "slice": self.count, "moe": self.moe_depth}
        return depths[rows]

    def debt(self, group: str) -> int:
        """First axis over which a sum over tp, attn_tp, moe or none is still partial."""
        debts = {"tp": 0, "attn_tp": self.attn_depth, "none": self.count, "moe": self.moe_depth}
        return debts[group]

    def digits(self, tp_rank: int) -> tuple[int, ...]:
        """A rank's place along every axis."""
        sizes = enumerate(self.sizes)
        return tuple(tp_rank // self.size(i + 1, self.count) % size for i, size in sizes)
