"""LinearStack: the small perceptron of a reward head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ..layers import BuildContext, ReplicatedLinear


class LinearStack(nn.ModuleDict):
    """Linears with an activation between them, whole on every rank.

    Named as ``nn.Sequential`` names them in checkpoints, where activations count: ``0``, ``2``, …

    Args:
        widths: features of the input, of each layer in between, and of the output.
        activation: after all layers but the last.
        ctx, prefix: as everywhere.

    Shapes:
        rows: (P, first width); returns (P, last width) and None, as linears do.
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: Callable[[Tensor], Tensor],
        *,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        sizes = enumerate(zip(widths, widths[1:], strict=False))
        super().__init__(
            {
                str(2 * at): ReplicatedLinear(size, width, ctx=ctx, prefix=f"{prefix}.{2 * at}")
                for at, (size, width) in sizes
            }
        )
        self.activation = activation

    def forward(self, rows: Tensor) -> tuple[Tensor, None]:
        """Every layer in turn."""
        *inner, last = self.values()
        for layer in inner:
            rows = self.activation(layer(rows)[0])
        return last(rows)[0], None
