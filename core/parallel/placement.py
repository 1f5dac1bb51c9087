"""Placements: how a value lies over the axes of a pipeline stage, and what may become of it.

Over the first axes rows are Split, over the next ones Replicated, over the last ones every rank
holds a Partial sum. So two integers say it all. With attn_dp x attn_tp::

    SR attention rows    SP attention output    RR gathered rows    PP FFN output    SS slices
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .axes import Axes


class Term(NamedTuple):
    """A value: axes [0, split) split its rows, [split, debt) hold copies, [debt, n) partial sums.

    ``post`` names the branch whose post-norm still has to be applied to the complete value.
    """

    split: int
    debt: int
    post: str = ""

    def letters(self, axes: Axes) -> str:
        """``SRP`` and the like; a post-norm to come in brackets."""
        split, debt, post = self
        text = "S" * split + "R" * (debt - split) + "P" * (axes.count - debt)
        return (text or "-") + (f"[{post}]" if post else "")


OPS = {
    "slice": "cuts rows over replicated axes only",
    "spread": "owes a term to every axis from some split axis on, with zeros for other ranks' rows; "
    "a complete term (the residual) only where sums are float32",
    "all_reduce": "pays the whole debt and keeps the rows",
    "reduce_scatter": "pays the axes it splits, of a term owed from where its rows stop being "
    "split; attention groups must have equally many rows",
    "all_gather": "joins rows that were split",
    "merge": "adds two equal terms that await no post-norm",
    "post": "normalises a complete term that awaits it",
    "read": "needs a stream of one complete term that awaits nothing",
    "select": "keeps a head's rows, once, at attention depth",
}
"""Every elementary step and its rule."""


@dataclass(frozen=True)
class Rules:
    """What may be done on one pipeline stage with one batch.

    Args:
        axes: of the pipeline stage.
        ragged: attention groups have different numbers of rows.
        fold: the residual may join a sum over ranks. In bfloat16 over 8 ranks that is 2 to 3 times
            less exact than adding afterwards, so only for float32 and wider.
        cuts: rows of an attention group can be cut into equal slices.
    """

    axes: Axes
    ragged: bool = False
    fold: bool = False
    cuts: bool = True

    def uneven(self, depth: int) -> bool:
        """Whether rows at this depth are joined from parts of different sizes."""
        return self.ragged and depth < self.axes.attn_depth

    def meets(self, op: str, src: Term, dst: Term) -> tuple[int, int] | None:
        """First and end axis over which ranks meet for a step; None for local steps."""
        match op:
            case "all_reduce":
                return src.debt, self.axes.count
            case "reduce_scatter":
                return src.split, dst.split
            case "all_gather":
                return dst.split, src.split
        return None

    def allows(self, op: str, src: Term, dst: Term) -> bool:
        """Whether a step may take a value from one placement to another."""
        n = self.axes.count
        complete, same = src.debt == n, src == dst
        if not self.cuts and max(src.split, dst.split) > self.axes.attn_depth:
            return False
        if op == "post":
            return bool(src.post) and complete and dst == Term(src.split, n)
        if src.post != dst.post:
            return False
        match op:
            case "slice":
                return src.split < dst.split <= src.debt == dst.debt
            case "spread":
                widens = dst.split == dst.debt <= src.split and not same
                return widens and (self.fold or not complete)
            case "all_reduce":
                return src.split == dst.split and not complete and dst.debt == n
            case "reduce_scatter":
                pays = src.split == src.debt < dst.split == dst.debt
                return pays and not self.uneven(src.split)
            case "all_gather":
                return dst.split < src.split and src.debt == dst.debt
            case "merge":
                return same and not src.post
            case "read":
                return same and not src.post and complete
            case "select":
                return same and complete and src.split == self.axes.attn_depth
        return False


@lru_cache(maxsize=4096)
def changes(rules: Rules, src: Term) -> tuple[tuple[str, Term], ...]:
    """Every (op, placement after) that a placement allows."""
    n = rules.axes.count
    ends = [
        Term(split, debt, post)
        for split in range(n + 1)
        for debt in range(split, n + 1)
        for post in sorted({"", src.post})
    ]
    return tuple((op, dst) for op in OPS for dst in ends if rules.allows(op, src, dst))
