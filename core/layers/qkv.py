"""Query, key and value projections as one column-parallel matrix, split by head."""

from __future__ import annotations

from torch import Tensor

from ..context import BuildContext
from ..parallel import HeadLayout, LinearPartition, Span
from .linear import LinearBase


class QKVParallelLinear(LinearBase):
    """Joined q, k and v projections, split by head; KV heads are copied when ranks outnumber them.

    The parameter's rows are q, k, v in this order. Which heads a rank holds is HeadLayout's
    answer, the same one that attention and the KV pool get.

    Args:
        hidden_size: D, input features, not split.
        head_size: H, width of a query or key head.
        total_num_heads: query heads, all ranks together.
        total_num_kv_heads: KV heads, all ranks together; as many as query heads when None.
        v_head_size: Hv, width of a value head; H when None.
        parallel_group: group that splits query heads.
        kv_parallel_group: group that splits KV heads; the same one when None.
        bias, skip_bias_add, ctx, prefix: as in LinearBase.

    Shapes:
        x: (T, D); returns (T, N*H + K*H + K*Hv), cut by ``local_sizes``.

    Raises:
        ShapeError: heads cannot be split over or copied on the groups.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        skip_bias_add: bool = False,
        *,
        v_head_size: int | None = None,
        parallel_group: str = "tp",
        kv_parallel_group: str | None = None,
        ctx: BuildContext,
        prefix: str = "",
    ) -> None:
        kv_heads = total_num_heads if total_num_kv_heads is None else total_num_kv_heads
        kv_group = ctx.group(kv_parallel_group or parallel_group)
        heads = HeadLayout.of(
            total_num_heads, kv_heads, ctx.group(parallel_group), kv_group, where=prefix
        )
        v_size = head_size if v_head_size is None else v_head_size
        inputs = Span(None, hidden_size, 0, hidden_size)
        partition = LinearPartition(head_spans(heads, head_size, v_size), inputs, where=prefix)
        super().__init__(partition, bias, skip_bias_add, ctx=ctx, prefix=prefix)
        self.heads, self.head_size, self.v_head_size = heads, head_size, v_size

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(T, D) to this rank's q, k and v, side by side."""
        return self._multiply(x), self._owed_bias()


def head_spans(heads: HeadLayout, head_size: int, v_head_size: int) -> tuple[Span, Span, Span]:
    """Rows of q, k and v that a rank takes and where they land."""
    q_size = heads.num_heads * head_size
    k_size = heads.num_kv_heads * head_size
    v_size = heads.num_kv_heads * v_head_size
    q_total = heads.total_num_heads * head_size
    k_total = heads.total_num_kv_heads * head_size
    v_total = heads.total_num_kv_heads * v_head_size
    return (
        Span("q", q_total, heads.first_head * head_size, q_size),
        Span("k", k_total, heads.first_kv_head * head_size, k_size, q_size),
        Span("v", v_total, heads.first_kv_head * v_head_size, v_size, q_size + k_size),
    )
