"""Experts: gated MLPs of which each row meets a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from ...context import BuildContext
from ...parallel import ExpertLayout, ExpertPartition, LinearPartition, Span, divide
from ..activation import GatedActivation, SiluAndMul
from .exchange import RowExchange
from .router import Routes
from .sorting import SortedRows


class ExpertLinear(nn.Module):
    """One linear layer of every expert here, as one parameter.

    Args:
        partition: which experts, and how the features of each are divided.
        ctx, prefix: as everywhere.

    Shapes:
        x: (R, in_features) sorted by expert; returns (R, out_features).
    """

    def __init__(self, partition: ExpertPartition, *, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.prefix, self.partition = prefix, partition
        self.quant_method = ctx.experts_method_for(prefix, partition.experts.total)
        self.quant_method.create_weights(self, partition, ctx.make)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Each row by the matrix of its expert; counts: rows of each."""
        return self.quant_method.apply(self, x, counts)


class Experts(nn.Module):
    """All experts of a layer; here those of this rank, of each its share of the width.

    Args:
        num_experts: E, all ranks together.
        hidden_size: D.
        intermediate_size: F, width of one expert, all ranks together.
        act_fn: gates the second half of ``gate_up_proj`` by the first; SiLU when None.
        ctx, prefix: as everywhere.

    Shapes:
        x: (T, D), routes: (T, k); returns (T, D), partial over ``moe``.

    Raises:
        ShapeError: the experts cannot be dealt to ``ep``, or F not split over ``moe_tp``.
    """

    reduce_results: ClassVar[bool] = False
    """The boundary completes the sum over ``group``."""

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        act_fn: GatedActivation | None = None,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.group = ctx.group("moe")
        self.layout = ExpertLayout.of(num_experts, ctx.group("ep"), prefix)
        self.exchange = RowExchange.of(num_experts, ctx, prefix)
        split = ctx.group("moe_tp")
        width = divide(intermediate_size, split, "moe_intermediate_size", prefix)
        start = split.rank * width
        model = Span(None, hidden_size, 0, hidden_size)
        gate, up = (Span(at, intermediate_size, start, width, at * width) for at in range(2))
        inner = Span(None, intermediate_size, start, width)
        self.gate_up_proj = self._linear("gate_up_proj", (gate, up), model, ctx, prefix)
        self.act_fn = SiluAndMul() if act_fn is None else act_fn
        self.down_proj = self._linear("down_proj", (model,), inner, ctx, prefix)

    def forward(self, x: Tensor, routes: Routes) -> Tensor:
        """What the experts of this rank give for every row, summed with the rows' weights.

        With an exchange: what the experts of all ranks that it reaches give.
        """
        if self.exchange is None:
            return self.compute(x, routes)
        return self.exchange.run(x, routes, self.compute)

    def compute(self, x: Tensor, routes: Routes) -> Tensor:
        """As ``forward``, for the experts of this rank alone."""
        rows = SortedRows.of(routes.experts, self.layout.here)
        inner = self.act_fn(self.gate_up_proj(rows.take(x), rows.counts))
        return rows.combine(self.down_proj(inner, rows.counts), routes.weights)

    def _linear(
        self,
        name: str,
        outputs: tuple[Span, ...],
        inputs: Span,
        ctx: BuildContext,
        prefix: str,
    ) -> ExpertLinear:
        where = f"{prefix}.{name}"
        linear = LinearPartition(outputs, inputs, where=where)
        return ExpertLinear(ExpertPartition(self.layout, linear), ctx=ctx, prefix=where)
