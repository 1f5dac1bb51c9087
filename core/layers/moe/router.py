"""TopKRouter: which experts each row goes to, and how much each of them counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...context import BuildContext
from ...errors import ShapeError
from ..linear import ReplicatedLinear


class Routes(NamedTuple):
    """Where rows go.

    Args:
        experts: (T, k) int64, global numbers.
        weights: (T, k) how much each counts; float32, or float64 in a model of float64.
    """

    experts: Tensor
    weights: Tensor


class TopKRouter(ReplicatedLinear):
    """Scores every expert for every row; the k likeliest get it.

    Softmax and choice are in float32 whatever the model's dtype: in bfloat16 experts tie for a place
    every few rows. Of equal ones the lower number wins, on every rank and in every batch.

    Args:
        hidden_size: D.
        num_experts: E.
        top_k: k, experts for each row.
        renormalize: the weights of a row add up to 1; otherwise they are its probabilities.
        ctx, prefix: as everywhere.

    Shapes:
        x: (T, D); returns (T, k) each. Rows of NaN (padding) go to some experts.

    Raises:
        ShapeError: k is not between 1 and E.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        renormalize: bool,
        *,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        if not 1 <= top_k <= num_experts:
            raise ShapeError(
                f"{prefix}: num_experts_per_tok={top_k} of num_experts={num_experts}; a row goes to "
                "1 expert at least and to each once at most"
            )
        super().__init__(hidden_size, num_experts, bias=False, ctx=ctx, prefix=prefix)
        self.top_k, self.renormalize = top_k, renormalize

    def route(self, x: Tensor) -> Routes:
        """Experts and weights of every row."""
        return choose(self(x)[0], self.top_k, self.renormalize)


def choose(logits: Tensor, top_k: int, renormalize: bool) -> Routes:
    """The likeliest experts of every row.

    Args:
        logits: (T, E).
        top_k, renormalize: as in TopKRouter.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    probabilities = logits.softmax(-1, dtype=wide)
    ordered, experts = probabilities.sort(dim=-1, descending=True, stable=True)
    weights = ordered[:, :top_k]
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routes(experts[:, :top_k], weights)
