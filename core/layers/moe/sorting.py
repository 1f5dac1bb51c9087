"""SortedRows: rows brought together by expert, and what the experts give brought back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SortedRows:
    """The (row, expert) pairs of the experts here, sorted by expert, then by row.

    Args:
        pairs: (R,) int64, flat indices into (T, k).
        counts: pairs of each expert here.
        shape: (T, k).
    """

    pairs: Tensor
    counts: tuple[int, ...]
    shape: tuple[int, int]

    @staticmethod
    def of(experts: Tensor, here: range) -> SortedRows:
        """Sort.

        Args:
            experts: (T, k) int64, global numbers.
            here: numbers of the experts of this rank.
        """
        rows, top_k = experts.shape
        flat = experts.flatten() - here.start
        foreign = (flat < 0) | (flat >= len(here))
        flat = flat.masked_fill(foreign, len(here))
        # One sort for all: pairs of other ranks' experts come last and are cut off.
        counts = torch.bincount(flat, minlength=len(here) + 1)[:-1].tolist()
        pairs = flat.argsort(stable=True)[: sum(counts)]
        return SortedRows(pairs, tuple(counts), (rows, top_k))

    def take(self, x: Tensor) -> Tensor:
        """(T, D) rows to (R, D), one for each pair."""
        return x.index_select(0, self.pairs // self.shape[1])

    def combine(self, given: Tensor, weights: Tensor) -> Tensor:
        """What each row gets, in given's dtype; sums are taken in that of the weights.

        Pairs are added in the order in which the router ranked them, so a row's sum is the same in
        every batch.

        Args:
            given: (R, D), one row for each pair.
            weights: (T, k).

        Returns:
            (T, D); 0 for rows that no expert here was asked about.
        """
        rows, top_k = self.shape
        spread = given.new_zeros(rows * top_k, given.shape[-1])
        spread.index_copy_(0, self.pairs, given)
        by_rank = spread.view(rows, top_k, given.shape[-1])
        total = weights.new_zeros(rows, given.shape[-1])
        for at in range(top_k):
            total += by_rank[:, at] * weights[:, at, None]
        return total.to(given.dtype)
