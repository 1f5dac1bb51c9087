"""StageBoundary: how an attention or FFN stage enters and leaves the residual stream.

One plan serves every stage so far: all-reduce, add, norm. The layer's forward shows neither a
``+`` nor a collective, so another plan changes nothing in it.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import BoundaryError
from ..parallel import Group
from .stream import AddNorm, ResidualStream


class StageBoundary:
    """Entry and exit of one stage.

    Args:
        norm: reads the residual stream.
        group: the stage's output is partial over it.
        compute: the stage's module; its linears must leave their sums to this boundary.
        where: dotted module path of the stage.

    Raises:
        BoundaryError: a linear under ``compute`` would complete its own sum (a double sum).
    """

    def __init__(self, norm: AddNorm, group: Group, compute: nn.Module, where: str) -> None:
        for name, module in compute.named_modules():
            if getattr(module, "reduce_results", False):
                raise BoundaryError(
                    f"{where}.{name}: reduce_results=True under a stage boundary would sum its "
                    f"output twice over {group.name}; build it with reduce_results=False"
                )
        self.norm, self.group, self.where = norm, group, where

    def prepare(self, stream: ResidualStream) -> Tensor:
        """Rows for the stage to compute on: (T, D), normalised."""
        return stream.read(self.norm)

    def finish(self, stream: ResidualStream, output: Tensor) -> None:
        """Record the stage's output, (T, D), partial over the group."""
        stream.owe(output, self.group, self.where)
