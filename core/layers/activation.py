"""Activations of gated MLPs."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class SiluAndMul(nn.Module):
    """silu(gate) * up, where the input holds gate and up side by side.

    Shapes:
        x: (T, 2F); returns (T, F).

    Source:
        Shazeer, "GLU Variants Improve Transformer" (arXiv 2002.05202).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Gate the second half by the first."""
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
