"""Vocabulary embedding and output head, split by rows of the vocabulary.

Ranks hold equal runs of a vocabulary padded at its end, so that every rank's matrix has the same
shape and gathered logits only need cutting::

    rank r of P holds rows [r*W, (r+1)*W),  W = V rounded up to lcm(padding_size, P), over P
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from ..context import BuildContext
from ..errors import InputError, ShapeError
from ..parallel import IN, OUT, Group, LinearPartition, ShardedParameter, Span
from .linear import LinearBase

DEFAULT_PADDING = 64
"""The vocabulary is padded to a multiple of this many rows."""


def vocab_partition(
    num_embeddings: int, embedding_dim: int, group: Group, padding_size: int, where: str
) -> LinearPartition:
    """Rows of the vocabulary that a rank holds, padding last."""
    step = math.lcm(padding_size, group.size)
    width = -(-num_embeddings // step) * step // group.size
    start = min(num_embeddings, group.rank * width)
    real = min(num_embeddings, start + width) - start
    rows = Span(None, num_embeddings, start, real)
    return LinearPartition(
        (rows,), Span(None, embedding_dim, 0, embedding_dim), width - real, where
    )


class VocabParallelEmbedding(nn.Module):
    """Token embedding whose rows are split across a group.

    A rank looks up the ids it holds, puts zeros for the others, and the group sums.

    Args:
        num_embeddings: V, vocabulary size, all ranks together.
        embedding_dim: D.
        parallel_group: group that splits the rows.
        padding_size: V is padded to a multiple of it.
        ctx, prefix: as everywhere.

    Shapes:
        ids: (T,) integers, 0 <= id < V; returns (T, D), complete on every rank.
    """

    weight: ShardedParameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        parallel_group: str = "tp",
        padding_size: int = DEFAULT_PADDING,
        ctx: BuildContext,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.prefix = num_embeddings, embedding_dim, prefix
        self.group = ctx.group(parallel_group)
        self.partition = vocab_partition(
            num_embeddings, embedding_dim, self.group, padding_size, prefix
        )
        ctx.method_for(prefix, "embedding").create_weights(self, self.partition, ctx.make)

    def forward(self, ids: Tensor) -> Tensor:
        """(T,) ids to (T, D).

        Raises:
            InputError: an id outside the vocabulary (checked where it costs no device sync).
        """
        self._check(ids)
        if self.group.size == 1:
            return F.embedding(ids, self.weight)
        rows = self.partition.outputs[0]
        local = ids - rows.start
        elsewhere = (local < 0) | (local >= rows.size)
        out = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.group.all_reduce(out.masked_fill(elsewhere.unsqueeze(-1), 0))

    def _check(self, ids: Tensor) -> None:
        if ids.device.type != "cpu" or not ids.numel():
            return
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.num_embeddings:
            raise InputError(
                f"{self.prefix}: token ids from {low} to {high}, the vocabulary is "
                f"0…{self.num_embeddings - 1}; encode with this model's tokenizer"
            )


class ParallelLMHead(LinearBase):
    """Output projection onto the vocabulary, split by rows as the embedding is.

    Not called directly: ``LogitsProcessor`` selects rows, multiplies with ``project``, gathers
    over the vocabulary and cuts the padding.

    Args:
        num_embeddings: V, vocabulary size, all ranks together.
        embedding_dim: D.
        bias: whether the head has one.
        parallel_group, padding_size, ctx, prefix: as in VocabParallelEmbedding.
        tied_to: the embedding whose matrix this head uses, the same storage.

    Raises:
        ShapeError: the embedding is laid out differently.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        *,
        parallel_group: str = "tp",
        padding_size: int = DEFAULT_PADDING,
        tied_to: VocabParallelEmbedding | None = None,
        ctx: BuildContext,
        prefix: str = "",
    ) -> None:
        group = ctx.group(parallel_group)
        partition = vocab_partition(num_embeddings, embedding_dim, group, padding_size, prefix)
        super().__init__(partition, bias, False, ctx=ctx, prefix=prefix)
        self.group, self.num_embeddings = group, num_embeddings
        self.shares_weight = tied_to is not None
        if tied_to is not None:
            if tied_to.weight.shard_spec != partition.spec(OUT, IN):
                raise ShapeError(
                    f"{prefix}: cannot be tied to {tied_to.prefix}, whose rows are split over "
                    f"{tied_to.group.name}={tied_to.group.size}, the head's over "
                    f"{group.name}={group.size}"
                )
            self.weight = tied_to.weight

    def untie(self) -> None:
        """Give a head that uses an embedding's matrix a copy of its own."""
        if not self.shares_weight:
            return
        self.shares_weight = False
        self.weight = ShardedParameter(self.weight.detach().clone(), self.weight.shard_spec)
        self.quant_method.process_weights_after_loading(self)

    def project(self, rows: Tensor) -> Tensor:
        """(S, D) hidden rows to this rank's (S, W) logits, padding included."""
        return self._multiply(rows)

    def forward(self, rows: Tensor) -> Tensor:
        """(S, D) hidden rows to (S, V) logits of the whole vocabulary, in the rows' dtype."""
        return self.group.all_gather(self.project(rows), -1)[:, : self.num_embeddings]
