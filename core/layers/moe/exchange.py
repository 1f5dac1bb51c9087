"""RowExchange: rows go to the ranks that hold their experts, and what these give comes back.

Every rank of the group has rows of its own and holds some experts::

    send   row 0 -> ranks 1, 2   row 1 -> rank 2   …      once to each rank, with its routes
    compute                                               each rank, for all rows it got
    return rank 1: row 0   rank 2: rows 0, 1   …          sums over the experts of that rank

A row travels once to a rank however many of its experts are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...context import BuildContext
from ...parallel import Group
from ...parallel.experts import deal
from .router import Routes

Compute = Callable[[Tensor, Routes], Tensor]
"""(R, D) rows and their routes to (R, D): sums over the experts of this rank."""


@dataclass(frozen=True)
class RowExchange:
    """Who holds which experts, among the ranks that exchange rows.

    Args:
        group: ranks with rows of their own.
        held: for each of them the experts it holds, or a share of.
    """

    group: Group
    held: tuple[range, ...]

    @staticmethod
    def of(num_experts: int, ctx: BuildContext, where: str) -> RowExchange | None:
        """The exchange between attention groups; None where every rank has all rows.

        Rank q of an attention group exchanges with rank q of the others. Together these hold some of
        all experts; the sum over the attention group, which has the same rows, adds up the rest.

        Args:
            num_experts: of a layer.
            ctx: groups of this rank.
            where: module path for messages.
        """
        group, ep, stage = ctx.group("attn_dp"), ctx.group("ep"), ctx.group("tp")
        if group.size == 1 or ep.size == 1:
            return None
        experts, sharing = deal(num_experts, ep.size, where), stage.size // ep.size
        places = [stage.ranks.index(rank) for rank in group.ranks]
        return RowExchange(group, tuple(experts[place // sharing] for place in places))

    def run(self, x: Tensor, routes: Routes, compute: Compute) -> Tensor:
        """Exchange, compute, exchange back (collective over the group; any rows, also none).

        Args:
            x: (T, D), this rank's rows.
            routes: of these.
            compute: what the experts of this rank give.

        Returns:
            (T, D), sums over the experts of all ranks of the group.
        """
        wanted = self._wanted(routes.experts)
        send = wanted.sum(1).tolist()
        receive = self._counts(send, x.device)
        rows = wanted.nonzero()[:, 1]
        got = self.group.all_to_all(x.index_select(0, rows), send, receive)
        packed = torch.cat([routes.experts.to(routes.weights.dtype), routes.weights], -1)
        experts, weights = self.group.all_to_all(packed.index_select(0, rows), send, receive).chunk(
            2, -1
        )
        given = compute(got, Routes(experts.to(torch.int64), weights))
        back = self.group.all_to_all(given, receive, send)
        return self._add_up(back, rows, send, x.shape, weights.dtype)

    def _wanted(self, experts: Tensor) -> Tensor:
        """(ranks, T) whether a rank holds an expert of a row."""
        of = [((experts >= held.start) & (experts < held.stop)).any(-1) for held in self.held]
        return torch.stack(of)

    def _counts(self, send: list[int], device: torch.device) -> list[int]:
        """Rows that each rank will send here."""
        ones = [1] * self.group.size
        told = torch.tensor(send, dtype=torch.int64, device=device)
        counts: list[int] = self.group.all_to_all(told, ones, ones).tolist()
        return counts

    def _add_up(
        self, back: Tensor, rows: Tensor, send: list[int], shape: torch.Size, dtype: torch.dtype
    ) -> Tensor:
        """Sums of what the ranks gave for each row, in group order."""
        total = torch.zeros(shape, dtype=dtype, device=back.device)
        parts = zip(torch.split(back, send), torch.split(rows, send), strict=True)
        for given, index in parts:
            total.index_add_(0, index, given.to(dtype))  # each row once, so the order is fixed
        return total.to(back.dtype)
