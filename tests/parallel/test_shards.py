"""All ranks' shard specs, put together, give the checkpoint tensor back."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import ShapeError
from archzoo.layers.qkv import head_spans
from archzoo.layers.vocab import vocab_partition
from archzoo.parallel import (
    IN,
    OUT,
    SEGMENT,
    Dim,
    HeadLayout,
    LinearPartition,
    ParameterFactory,
    Segment,
    ShardedParameter,
    ShardSpec,
    Span,
    box_numel,
    box_slices,
    plain_spec,
    shape_only,
)

UNWRITTEN = -1


def source_for(segment: Segment) -> torch.Tensor:
    """Every element its own number."""
    return torch.arange(torch.Size(segment.source_shape).numel()).view(segment.source_shape)


def fill(spec: ShardSpec, sources: dict[object, torch.Tensor]) -> torch.Tensor:
    """A rank's parameter; fails when an element is written twice or a box is out of range."""
    parameter = torch.full(spec.shape, UNWRITTEN)
    for segment in spec.segments:
        for piece in segment.pieces:
            target = parameter[box_slices(piece.target)]
            assert target.numel() == box_numel(piece.target) == box_numel(piece.source)
            assert (target == UNWRITTEN).all(), "written twice"
            target.copy_(sources[segment.shard_id][box_slices(piece.source)])
    for box in spec.padding:
        padded = parameter[box_slices(box)]
        assert (padded == UNWRITTEN).all(), "padding over written elements"
        padded.fill_(0)
    assert (parameter != UNWRITTEN).all(), "an element nobody writes"
    return parameter


def assert_reassembles(specs: list[ShardSpec], replicas: int = 1) -> None:
    """Each source element is on exactly `replicas` ranks, and where the spec says."""
    first = specs[0]
    sources = {s.shard_id: source_for(s) for s in first.segments}
    counts = {key: torch.zeros_like(source) for key, source in sources.items()}
    rebuilt = {key: torch.full_like(source, UNWRITTEN) for key, source in sources.items()}
    for spec in specs:
        parameter = fill(spec, sources)
        for segment in spec.segments:
            assert segment.source_shape == first.segment(segment.shard_id).source_shape
            for piece in segment.pieces:
                counts[segment.shard_id][box_slices(piece.source)] += 1
                rebuilt[segment.shard_id][box_slices(piece.source)] = parameter[
                    box_slices(piece.target)
                ]
    for key, source in sources.items():
        assert torch.equal(rebuilt[key], source)
        expected = replicas if key in ("k", "v") or key is None else 1
        assert (counts[key] == expected).all(), key


@given(
    ranks=st.integers(1, 6),
    locals_=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    inputs=st.integers(1, 7),
    pack=st.sampled_from([1, 2, 8]),
    group_size=st.sampled_from([1, 4]),
)
@settings(max_examples=80, deadline=None)
def test_columns_reassemble(
    ranks: int, locals_: list[int], inputs: int, pack: int, group_size: int
) -> None:
    width = inputs * group_size * pack
    specs: dict[str, list[ShardSpec]] = {"weight": [], "packed": [], "scales": [], "bias": []}
    for rank in range(ranks):
        spans, offset = [], 0
        for shard_id, local in enumerate(locals_):
            size = local * pack
            spans.append(Span(shard_id, size * ranks, rank * size, size, offset))
            offset += size
        partition = LinearPartition(tuple(spans), Span(None, width, 0, width))
        specs["weight"].append(partition.spec(OUT, IN))
        specs["packed"].append(partition.spec(Dim("out", unit=pack), IN))
        specs["scales"].append(partition.spec(OUT, Dim("in", unit=group_size)))
        specs["bias"].append(partition.spec(OUT))
    for family in specs.values():
        assert_reassembles(family)


@given(
    ranks=st.integers(1, 6),
    local=st.integers(1, 5),
    outputs=st.integers(1, 6),
    pack=st.sampled_from([1, 2, 8]),
)
@settings(max_examples=60, deadline=None)
def test_rows_reassemble(ranks: int, local: int, outputs: int, pack: int) -> None:
    size = local * pack
    partitions = [
        LinearPartition(
            (Span(None, outputs, 0, outputs),), Span(None, size * ranks, rank * size, size)
        )
        for rank in range(ranks)
    ]
    assert_reassembles([p.spec(OUT, IN) for p in partitions])
    assert_reassembles([p.spec(Dim("in", unit=pack), OUT) for p in partitions])
    assert_reassembles([p.spec(IN) for p in partitions])
    assert_reassembles([p.spec(OUT) for p in partitions], replicas=ranks)


@given(
    kv=st.integers(1, 6),
    per_kv=st.integers(1, 4),
    ranks=st.integers(1, 24),
    head=st.integers(1, 3),
    v_head=st.integers(1, 4),
    width=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_heads_reassemble_or_are_refused(
    kv: int, per_kv: int, ranks: int, head: int, v_head: int, width: int
) -> None:
    heads = kv * per_kv
    possible = heads % ranks == 0 and (kv % ranks == 0 or ranks % kv == 0)
    specs, fused = [], []
    for rank in range(ranks):
        if not possible:
            with pytest.raises(ShapeError, match=rf"{ranks}"):
                HeadLayout.of(heads, kv, shape_only(ranks, rank))
            continue
        layout = HeadLayout.of(heads, kv, shape_only(ranks, rank))
        spans = head_spans(layout, head, v_head)
        partition = LinearPartition(spans, Span(None, width, 0, width))
        spec = partition.spec(OUT, IN)
        specs.append(spec)
        fused.append(ShardSpec(spec.shape, (spec.segment(None),)))
        own = range(layout.first_head, layout.first_head + layout.num_heads)
        kv_own = range(layout.first_kv_head, layout.first_kv_head + layout.num_kv_heads)
        assert {h // per_kv for h in own} == set(kv_own), "query heads without their KV head"
    if not possible:
        return
    assert_reassembles(specs, replicas=max(1, ranks // kv))
    stacked = torch.cat([source_for(s) + i * 1000 for i, s in enumerate(specs[0].segments)])
    for spec, whole_file in zip(specs, fused, strict=True):
        split = {s.shard_id: source_for(s) + i * 1000 for i, s in enumerate(spec.segments)}
        assert torch.equal(fill(spec, split), fill(whole_file, {None: stacked}))


@given(vocab=st.integers(1, 300), ranks=st.integers(1, 9), padding=st.sampled_from([1, 8, 64]))
@settings(max_examples=80, deadline=None)
def test_vocabulary_reassembles(vocab: int, ranks: int, padding: int) -> None:
    partitions = [
        vocab_partition(vocab, 2, shape_only(ranks, rank), padding, "") for rank in range(ranks)
    ]
    assert len({p.out_features for p in partitions}) == 1, "ranks differ in shape"
    assert partitions[0].out_features * ranks % padding == 0
    assert_reassembles([p.spec(OUT, IN) for p in partitions])
    gathered = torch.cat(
        [fill(p.spec(OUT, IN), {None: torch.arange(vocab * 2).view(vocab, 2)}) for p in partitions]
    )
    assert torch.equal(gathered[:vocab], torch.arange(vocab * 2).view(vocab, 2))
    assert (gathered[vocab:] == 0).all()


def test_one_place_for_each_segment() -> None:
    spans = head_spans(HeadLayout.of(4, 2, shape_only(2, 1)), 8, 8)
    spec = LinearPartition(spans, Span(None, 16, 0, 16)).spec(SEGMENT)
    assert spec.shape == (3,)
    assert [s.pieces[0].target for s in spec.segments] == [((0, 1),), ((1, 2),), ((2, 3),)]
    assert spec.shard_ids == ("q", "k", "v")


@pytest.mark.parametrize("unit", [3, 5, 16])
def test_a_cut_inside_a_pack_is_refused(unit: int) -> None:
    partition = LinearPartition(
        (Span(None, 6, 0, 6),), Span(None, 32, 8, 8), where="model.layers.3.mlp.down_proj"
    )
    with pytest.raises(ShapeError, match=rf"layers\.3\.mlp\.down_proj.*{unit}"):
        partition.spec(Dim("in", unit=unit), OUT)


def test_block_scales_round_the_last_block_up_only_at_the_end() -> None:
    whole = LinearPartition((Span(None, 70, 0, 70),), Span(None, 8, 0, 8))
    assert whole.spec(Dim("out", unit=32, round_up=True), IN).shape == (3, 8)
    cut = LinearPartition((Span(None, 96, 0, 48),), Span(None, 8, 0, 8), where="m")
    with pytest.raises(ShapeError, match="48.*32"):
        cut.spec(Dim("out", unit=32, round_up=True), IN)


def test_sharded_parameters_copy_and_pickle_with_their_spec() -> None:
    make = ParameterFactory(torch.float32, torch.device("cpu"), poison=True)
    parameter = make(plain_spec((2, 3)))
    assert parameter.isnan().all() and not parameter.requires_grad
    parameter.data.fill_(1)
    for other in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert isinstance(other, ShardedParameter)
        assert torch.equal(other, parameter) and other.shard_spec == parameter.shard_spec
        other.data.fill_(2)
        assert (parameter == 1).all(), "shares storage with its copy"
    with pytest.raises(ShapeError, match=r"\[2\].*\[2, 3\]"):
        ShardedParameter(torch.empty(2), plain_spec((2, 3)))


def test_unknown_shard_is_refused() -> None:
    with pytest.raises(ShapeError, match="'q'"):
        plain_spec((2,)).segment("q")
