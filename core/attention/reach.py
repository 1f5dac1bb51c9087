"""Reach: which keys a query sees, as two distances; and the additive masks made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..forward import AttentionSpec, AttentionType


@dataclass(frozen=True)
class Reach:
    """A query at position p sees the keys at p - behind ... p + ahead.

    Args:
        behind: tokens back, the query's own not counted; None for all.
        ahead: tokens forward; None for all.
    """

    behind: int | None
    ahead: int | None

    @staticmethod
    def of(spec: AttentionSpec) -> Reach:
        """What the layer's type and window allow.

        A window of W tokens counts the query itself. Causal layers have it behind them;
        bidirectional ones see W - 1 tokens on either side.
        """
        side = None if spec.sliding_window is None else spec.sliding_window - 1
        return Reach(side, 0 if spec.attn_type is AttentionType.DECODER else side)

    def first_key(self, position: int) -> int:
        """The earliest position seen from a position."""
        return 0 if self.behind is None else max(0, position - self.behind)

    def end_key(self, position: int, total: int) -> int:
        """One past the last position seen from a position, in a sequence of total tokens."""
        return total if self.ahead is None else min(total, position + self.ahead + 1)

    def hides(self, first: int, last: int, start: int, stop: int) -> bool:
        """Whether some query of first ... last (inclusive) misses a key of start ... stop - 1."""
        too_far_back = self.behind is not None and last - start > self.behind
        too_far_on = self.ahead is not None and stop - 1 - first > self.ahead
        return too_far_back or too_far_on

    def bias(self, rows: int, left: int, right: int, like: Tensor) -> Tensor:
        """Additive mask by distance: 0 where a query sees a key, -inf elsewhere.

        Args:
            rows: consecutive query positions.
            left: the first column is this many tokens before the first query.
            right: one past the last column, in tokens after the first query.
            like: gives dtype and device.

        Returns:
            (rows, left + right).
        """
        query = torch.arange(rows, device=like.device)[:, None]
        ahead = torch.arange(-left, right, device=like.device)[None, :] - query
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        if self.behind is not None:
            hidden |= ahead < -self.behind
        if self.ahead is not None:
            hidden |= ahead > self.ahead
        return additive(hidden, like.dtype)


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask of what is hidden, as something to add to scores."""
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill_(hidden, -math.inf)
