"""Root-mean-square normalisation, with the residual addition joined in."""

from __future__ import annotations

from typing import overload

from torch import Tensor, nn
from torch.nn import functional as F

from ..context import BuildContext
from ..parallel import plain_spec


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension.

    Statistics are taken in float32 for narrower dtypes; the result has x's dtype whatever the
    checkpoint stored.

    Args:
        hidden_size: D, width of the last dimension.
        eps: added to the mean square.
        ctx, prefix: as everywhere.

    Shapes:
        x: (…, D); returns (…, D), and the new residual (…, D) when one is given.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv 1910.07467).
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, *, ctx: BuildContext, prefix: str = ""
    ) -> None:
        super().__init__()
        self.prefix, self.eps = prefix, eps
        self.weight = ctx.make(plain_spec((hidden_size,)))
        self._shape = (hidden_size,)

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The normalised rows; with a residual, x + residual normalised and that sum."""
        if residual is None:
            return F.rms_norm(x, self._shape, self.weight, self.eps)
        total = x + residual
        return F.rms_norm(total, self._shape, self.weight, self.eps), total
