"""The experts in plain torch, expert by expert: the twin that the fast path is compared with."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .router import Routes


def reference_experts(
    x: Tensor, routes: Routes, gate_up: Tensor, down: Tensor, first: int = 0
) -> Tensor:
    """What some experts give for every row, summed with the rows' weights.

    Args:
        x: (T, D).
        routes: of every row, among all experts.
        gate_up: (E, 2F, D), gate above up.
        down: (E, D, F).
        first: global number of the first of these experts.

    Returns:
        (T, D), x's dtype; sums are taken in that of the weights.
    """
    total = routes.weights.new_zeros(x.shape)
    for at in range(len(gate_up)):
        rows, ranks = (routes.experts == first + at).nonzero(as_tuple=True)
        gate, up = F.linear(x[rows], gate_up[at]).chunk(2, -1)
        given = F.linear(F.silu(gate) * up, down[at])
        total.index_add_(0, rows, given * routes.weights[rows, ranks, None])
    return total.to(x.dtype)
