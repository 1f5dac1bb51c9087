"""RowMover: the tensor work behind a change of placement, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .group import Group
from .placement import Rules, Term
from .rows import RowMap


@dataclass(frozen=True)
class RowMover:
    """Moves rows between the ranks of a pipeline stage.

    Args:
        rules: axes and layout.
        rows: which rows each rank holds.
        tp_rank: this rank's place in its stage.
        group: gives this rank's Group of a name.
    """

    rules: Rules
    rows: RowMap
    tp_rank: int
    group: Callable[[str], Group]

    def move(self, x: Tensor, op: str, src: Term, dst: Term) -> Tensor:
        """Change a value's placement. The result may share x's storage; x is never changed.

        Args:
            x: (T, ...), rows at depth ``src.split``.
            op: slice, spread, all_reduce, reduce_scatter or all_gather.
            src, dst: placements, as ``rules`` allow.
        """
        run = self.rules.meets(op, src, dst)
        if run is None:
            if op == "slice":
                return x[self.rows.cut(self.tp_rank, src.split, dst.split)]
            return self._spread(x, src, dst)
        group = self.group(self.rules.axes.group(*run))
        if op == "all_reduce":
            return group.all_reduce(x)
        if op == "reduce_scatter":
            return group.reduce_scatter(x, 0)
        if self.rules.uneven(dst.split):  # collectives want equal parts, so zeros are added up
            return group.all_reduce(self._widen(x, src.split, dst.split))
        return group.all_gather(x, 0)

    def pick(self, x: Tensor, picked: Tensor | None) -> Tensor:
        """Some rows of an attention group, as the first of those that ``rows`` says it holds.

        Args:
            x: (T, D), the group's rows of another batch layout.
            picked: (R,) int64, which of them; None for as many as are real here, from the first.
        """
        depth = self.rules.axes.attn_depth
        if picked is None:
            real = self.rows.real(self.tp_rank, depth)
            kept = x[: real[0].stop if real else 0]
        else:
            kept = x.index_select(0, picked)
        padding = len(self.rows.span(self.tp_rank, depth)) - kept.shape[0]
        return F.pad(kept, (0, 0, 0, padding)) if padding else kept

    def _spread(self, x: Tensor, src: Term, dst: Term) -> Tensor:
        """Zeros for rows of other ranks, and everywhere on all copies but the first."""
        if any(self.rules.axes.digits(self.tp_rank)[src.split : src.debt]):
            x = torch.zeros_like(x)
        return self._widen(x, src.split, dst.split)

    def _widen(self, x: Tensor, src: int, dst: int) -> Tensor:
        wide = x.new_zeros(len(self.rows.span(self.tp_rank, dst)), *x.shape[1:])
        wide[self.rows.cut(self.tp_rank, dst, src)] = x
        return wide
