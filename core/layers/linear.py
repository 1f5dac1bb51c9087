"""Parallel linear layers: replicated, column, merged column, row.

Every layer binds one group at construction. It cuts the weight by that group and, where it sums
or gathers, sums or gathers over that same group. ``forward`` returns ``(output, bias)``; the bias
is None unless ``skip_bias_add`` leaves adding it to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from ..context import BuildContext
from ..parallel import Group, LinearPartition, Span, divide


class LinearBase(nn.Module):
    """A linear layer whose parameters are created and applied by a quantization method.

    Args:
        partition: how features are divided here.
        bias: whether there is one.
        skip_bias_add: return the bias instead of adding it.
        ctx: dtype, device, quantization.
        prefix: dotted module path.

    Attributes:
        input_size: input features, all ranks together.
        output_size: output features, all ranks together.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        partition: LinearPartition,
        bias: bool,
        skip_bias_add: bool,
        *,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.prefix, self.partition, self.skip_bias_add = prefix, partition, skip_bias_add
        self.input_size = partition.inputs.total
        self.output_size = sum(span.total for span in partition.outputs)
        self.quant_method = ctx.method_for(prefix)
        self.quant_method.create_weights(self, partition, ctx.make)
        if bias:
            self.quant_method.create_bias(self, partition, ctx.make)
        else:
            self.register_parameter("bias", None)

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """Output features of each segment on this rank."""
        return self.partition.local_sizes

    def _multiply(self, x: Tensor, add_bias: bool = True) -> Tensor:
        bias = self.bias if add_bias and not self.skip_bias_add else None
        return self.quant_method.apply(self, x, bias)

    def _owed_bias(self) -> Tensor | None:
        return self.bias if self.skip_bias_add else None


class ReplicatedLinear(LinearBase):
    """Linear layer that every rank holds whole.

    Args:
        input_size: I, input features.
        output_size: O, output features.
        bias, skip_bias_add, ctx, prefix: as in LinearBase.

    Shapes:
        x: (T, I); returns (T, O).
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        skip_bias_add: bool = False,
        *,
        ctx: BuildContext,
        prefix: str = "",
    ) -> None:
        partition = LinearPartition(
            (Span(None, output_size, 0, output_size),),
            Span(None, input_size, 0, input_size),
            where=prefix,
        )
        super().__init__(partition, bias, skip_bias_add, ctx=ctx, prefix=prefix)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(T, I) to (T, O)."""
        return self._multiply(x), self._owed_bias()


class MergedColumnParallelLinear(LinearBase):
    """Several column-parallel layers over one input, as one matrix.

    Rank r of P holds rows [r*O/P, (r+1)*O/P) of each part, parts in order.

    Args:
        input_size: I, not split.
        output_sizes: O of each part, all ranks together.
        gather_output: return all ranks' outputs, parts in order.
        parallel_group: group that splits the outputs.
        bias, skip_bias_add, ctx, prefix: as in LinearBase.

    Shapes:
        x: (T, I); returns (T, sum O / P), or (T, sum O) gathered.

    Raises:
        ShapeError: P does not divide a part.

    Source:
        Megatron-LM, sec. 3 (arXiv 1909.08053).
    """

    def __init__(
        self,
        input_size: int,
        output_sizes: Sequence[int],
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        *,
        parallel_group: str = "tp",
        ctx: BuildContext,
        prefix: str = "",
        output_name: str = "output_size",
    ) -> None:
        self_group = ctx.group(parallel_group)
        locals_ = [divide(size, self_group, output_name, prefix) for size in output_sizes]
        offsets = [0, *accumulate(locals_)]
        ids = list(range(len(locals_))) if len(locals_) > 1 else [None]
        outputs = tuple(
            Span(shard_id, total, self_group.rank * local, local, offset)
            for shard_id, total, local, offset in zip(
                ids, output_sizes, locals_, offsets, strict=False
            )
        )
        partition = LinearPartition(outputs, Span(None, input_size, 0, input_size), where=prefix)
        super().__init__(partition, bias, skip_bias_add, ctx=ctx, prefix=prefix)
        self.group, self.gather_output = self_group, gather_output

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(T, I) to this rank's columns, or to all of them when gathering."""
        out, bias = self._multiply(x), self._owed_bias()
        if self.gather_output:
            out = self._gather(out)
            bias = None if bias is None else self._gather(bias)
        return out, bias

    def _gather(self, x: Tensor) -> Tensor:
        """All ranks' columns, part by part: ranks send their parts side by side."""
        if self.group.size == 1:
            return x
        gathered = self.group.all_gather(x, -1)
        by_rank = gathered.view(*x.shape[:-1], self.group.size, x.shape[-1])
        parts = torch.split(by_rank, list(self.local_sizes), dim=-1)
        return torch.cat([part.flatten(-2) for part in parts], dim=-1)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """Linear layer whose output features are split across a parallel group.

    Args:
        input_size: I, not split.
        output_size: O, all ranks together.
        gather_output, parallel_group, bias, skip_bias_add, ctx, prefix: as in
            MergedColumnParallelLinear.

    Shapes:
        x: (T, I); returns (T, O/P), or (T, O) gathered.

    Raises:
        ShapeError: P does not divide O.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        *,
        parallel_group: str = "tp",
        ctx: BuildContext,
        prefix: str = "",
        output_name: str = "output_size",
    ) -> None:
        super().__init__(
            input_size,
            (output_size,),
            bias,
            gather_output,
            skip_bias_add,
            parallel_group=parallel_group,
            ctx=ctx,
            prefix=prefix,
            output_name=output_name,
        )


class RowParallelLinear(LinearBase):
    """Linear layer whose input features are split across a parallel group.

    Rank r of P holds columns [r*I/P, (r+1)*I/P) of the full weight, so its product is a partial
    sum. Bias enters on rank 0 of the group only: the sum adds it once.

    Args:
        input_size: I, features of the full input, all ranks together.
        output_size: O, not split.
        input_is_parallel: x is already this rank's slice; otherwise the slice is taken here.
        reduce_results: sum over the group here; False leaves it to the boundary.
        parallel_group: group that splits the inputs, and that the sum runs over.
        bias, skip_bias_add, ctx, prefix: as in LinearBase. A skipped bias is returned whole on
            every rank; the caller adds it once, after the sum.

    Shapes:
        x: (T, I/P), or (T, I) with input_is_parallel=False.
        returns: (T, O), partial while reduce_results is False.

    Raises:
        ShapeError: P does not divide I.

    Source:
        Megatron-LM, sec. 3 (arXiv 1909.08053).
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        reduce_results: bool = True,
        *,
        parallel_group: str = "tp",
        ctx: BuildContext,
        prefix: str = "",
        input_name: str = "input_size",
    ) -> None:
        group = ctx.group(parallel_group)
        local = divide(input_size, group, input_name, prefix)
        partition = LinearPartition(
            (Span(None, output_size, 0, output_size),),
            Span(None, input_size, group.rank * local, local),
            where=prefix,
        )
        super().__init__(partition, bias, skip_bias_add, ctx=ctx, prefix=prefix)
        self.group: Group = group
        self.input_is_parallel, self.reduce_results = input_is_parallel, reduce_results

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """This rank's partial sum, summed over the group where asked."""
        if not self.input_is_parallel and self.group.size > 1:
            x = x.narrow(-1, self.partition.inputs.start, self.partition.inputs.size)
        out = self._multiply(x, add_bias=self.group.rank == 0)
        if self.reduce_results:
            out = self.group.all_reduce(out)
        return out, self._owed_bias()
