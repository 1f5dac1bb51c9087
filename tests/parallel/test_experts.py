"""Experts dealt to ranks: every element of every expert is somewhere once, whoever holds what."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from archzoo.errors import ShapeError
from archzoo.parallel import (
    IN,
    OUT,
    ExpertLayout,
    ExpertPartition,
    ExpertShard,
    LinearPartition,
    ShardSpec,
    Span,
    box_shape,
    box_slices,
    shape_only,
)
from archzoo.parallel.experts import deal

HIDDEN, WIDTH = 3, 4


@pytest.mark.parametrize(("total", "parts"), list(product((1, 2, 5, 8), (1, 2, 3, 5, 8))))
def test_every_expert_is_dealt_once_in_order(total: int, parts: int) -> None:
    if parts > total:
        with pytest.raises(ShapeError, match=rf"m\.experts: num_experts={total} .* ep={parts}"):
            deal(total, parts, "m.experts")
        return
    dealt = deal(total, parts)
    assert [expert for part in dealt for expert in part] == list(range(total))
    sizes = [len(part) for part in dealt]
    assert len(sizes) == parts and sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def specs(total: int, ep: int, moe_tp: int, gated: bool) -> list[ShardSpec]:
    """Of every rank: gate and up, split over their outputs, or down, split over its inputs."""
    found = []
    for part, share in product(range(ep), range(moe_tp)):
        local = WIDTH // moe_tp
        layout = ExpertLayout.of(total, shape_only(ep, part, "ep"))
        inner = [Span(at, WIDTH, share * local, local, at * local) for at in range(2)]
        model = Span(None, HIDDEN, 0, HIDDEN)
        if gated:
            linear = LinearPartition(tuple(inner), model)
        else:
            linear = LinearPartition((model,), Span(None, WIDTH, share * local, local))
        found.append(ExpertPartition(layout, linear).spec(OUT, IN))
    return found


def numbered(shape: tuple[int, ...], start: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape) + start


CASES = [
    (total, ep, moe_tp, gated)
    for total, ep, moe_tp, gated in product((1, 3, 4), (1, 2, 4), (1, 2, 4), (False, True))
    if ep <= total
]


@pytest.mark.parametrize(("total", "ep", "moe_tp", "gated"), CASES)
@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_together_hold_every_element_once(
    total: int, ep: int, moe_tp: int, gated: bool, fused: bool
) -> None:
    each = specs(total, ep, moe_tp, gated)
    if fused:
        ids = [None]
    else:
        parts = (0, 1) if gated else (None,)
        ids = [ExpertShard(expert, part) for expert in range(total) for part in parts]
        assert all(spec.shard_ids == tuple(ids) for spec in each), "every rank knows all tensors"
    for shard_id in ids:
        source = numbered(each[0].segment(shard_id).source_shape, 0)
        held = torch.zeros_like(source)
        for spec in each:
            for piece in spec.segment(shard_id).pieces:
                held[box_slices(piece.source)] += 1
        assert (held == 1).all()
    for spec in each:
        written = torch.zeros(spec.shape, dtype=torch.int64)
        for shard_id in ids:
            for piece in spec.segment(shard_id).pieces:
                assert box_shape(piece.target)[-2:] == box_shape(piece.source)[-2:]
                written[box_slices(piece.target)] += 1
        assert (written == 1).all()


@pytest.mark.parametrize("gated", [False, True])
def test_fused_and_split_tensors_fill_the_same_elements(gated: bool) -> None:
    """The fused tensor is the experts' own, gate above up, stacked."""
    total, rows = 3, WIDTH if gated else HIDDEN
    parts = (0, 1) if gated else (None,)
    columns = HIDDEN if gated else WIDTH
    sources = {
        ExpertShard(expert, part): numbered((rows, columns), 100 * expert + 50 * (part or 0))
        for expert in range(total)
        for part in parts
    }
    whole = torch.stack(
        [torch.cat([sources[ExpertShard(e, part)] for part in parts]) for e in range(total)]
    )
    for spec in specs(total, 2, 2, gated):
        split, fused = torch.zeros(2, *spec.shape, dtype=torch.int64)
        for shard_id, source in sources.items():
            for piece in spec.segment(shard_id).pieces:
                split[box_slices(piece.target)] = source[box_slices(piece.source)]
        assert spec.segment(None).source_shape == tuple(whole.shape)
        for piece in spec.segment(None).pieces:
            fused[box_slices(piece.target)] = whole[box_slices(piece.source)]
        assert torch.equal(split, fused)


def test_a_shard_that_is_not_there_is_named_without_listing_them_all() -> None:
    (spec,) = specs(8, 1, 1, True)
    with pytest.raises(ShapeError, match=r"expert=9.*…") as caught:
        spec.segment(ExpertShard(9, 0))
    assert len(str(caught.value)) < 300
