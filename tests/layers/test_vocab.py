"""Vocabulary embedding and head over ranks, padding included."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from archzoo.context import BuildContext
from archzoo.errors import InputError, ShapeError
from archzoo.layers.vocab import ParallelLMHead, VocabParallelEmbedding
from archzoo.parallel import Topology
from ranks import fill, finish, on_ranks


def table(vocab: int, width: int = 6) -> torch.Tensor:
    return torch.randn(vocab, width, generator=torch.Generator().manual_seed(vocab))


@pytest.mark.parametrize("tp", [1, 2, 3, 5])
@pytest.mark.parametrize("vocab", [1, 64, 65, 130, 200])
def test_lookup_equals_one_table(vocab: int, tp: int) -> None:
    weight = table(vocab)
    ids = torch.tensor([0, vocab - 1, vocab // 2, 0])

    def run(ctx: BuildContext) -> torch.Tensor:
        layer = VocabParallelEmbedding(vocab, 6, ctx=ctx, prefix="e")
        fill(layer.weight, {None: weight})
        assert layer(ids[:0]).shape == (0, 6)
        return layer(ids)

    for out in on_ranks(Topology(tp=tp), run):
        assert torch.equal(out, weight[ids])


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("vocab", [1, 64, 130])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_head_gathers_the_vocabulary_and_cuts_padding(
    vocab: int, tp: int, rows: int, bias: bool
) -> None:
    weight, b = table(vocab), torch.arange(vocab, dtype=torch.float32)
    x = torch.randn(rows, 6)

    def run(ctx: BuildContext) -> torch.Tensor:
        head = ParallelLMHead(vocab, 6, bias, ctx=ctx, prefix="lm_head")
        fill(head.weight, {None: weight})
        if head.bias is not None:
            fill(head.bias, {None: b})
        finish(head)
        return head(x)

    for out in on_ranks(Topology(tp=tp), run):
        torch.testing.assert_close(out, F.linear(x, weight, b if bias else None))


def test_a_tied_head_shares_the_embeddings_storage_and_leaves_it_readable() -> None:
    def run(ctx: BuildContext) -> None:
        embedding = VocabParallelEmbedding(70, 6, ctx=ctx, prefix="e")
        head = ParallelLMHead(70, 6, tied_to=embedding, ctx=ctx, prefix="lm_head")
        assert head.weight is embedding.weight
        fill(embedding.weight, {None: table(70)})
        finish(head)
        assert torch.equal(embedding(torch.tensor([69])), table(70)[69:])
        torch.testing.assert_close(head(torch.eye(6)), table(70).T)

    on_ranks(Topology(tp=2), run)


def test_a_head_cannot_be_tied_across_layouts() -> None:
    def run(ctx: BuildContext) -> None:
        embedding = VocabParallelEmbedding(64, 6, parallel_group="tp", ctx=ctx, prefix="embed")
        with pytest.raises(ShapeError, match=r"lm_head.*embed.*tp=4.*attn_tp=2"):
            ParallelLMHead(
                64, 6, parallel_group="attn_tp", tied_to=embedding, ctx=ctx, prefix="lm_head"
            )

    on_ranks(Topology(tp=4, attn_dp=2), run)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("bad", [-1, 70, 127, 5000])
def test_ids_outside_the_vocabulary_are_refused(tp: int, bad: int) -> None:
    """Padding rows are no vocabulary, and another rank's rows are not everybody's zeros."""

    def run(ctx: BuildContext) -> None:
        layer = VocabParallelEmbedding(70, 6, ctx=ctx, prefix="model.embed_tokens")
        fill(layer.weight, {None: table(70)})
        with pytest.raises(InputError, match=rf"embed_tokens.*{bad}.*0…69"):
            layer(torch.tensor([3, bad]))

    on_ranks(Topology(tp=tp), run)
