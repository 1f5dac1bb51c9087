"""Which pipeline stage holds which layers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archzoo.context import BuildContext
from archzoo.errors import ShapeError, TopologyError
from archzoo.parallel import Elsewhere, PipelineStage, Topology, split_layers


def sizes(num_layers: int, pp: int) -> list[int]:
    return [len(layers) for layers in split_layers(num_layers, Topology(pp=pp))]


@given(st.integers(1, 130), st.integers(1, 40))
def test_every_layer_is_on_one_stage_and_stages_differ_by_one(num_layers: int, pp: int) -> None:
    if pp > num_layers:
        return
    ranges = split_layers(num_layers, Topology(pp=pp))
    assert [layer for layers in ranges for layer in layers] == list(range(num_layers))
    lengths = [len(layers) for layers in ranges]
    assert len(ranges) == pp and min(lengths) >= 1 and max(lengths) - min(lengths) <= 1
    assert lengths[-1] == min(lengths), "the last stage has the head, never a layer more"


@pytest.mark.parametrize(
    ("num_layers", "pp", "expected"),
    [
        (1, 1, [1]),
        (3, 2, [2, 1]),
        (3, 3, [1, 1, 1]),
        (4, 3, [1, 2, 1]),
        (5, 3, [2, 2, 1]),
        (6, 5, [1, 2, 1, 1, 1]),
        (9, 5, [2, 2, 2, 2, 1]),
        (12, 5, [2, 3, 3, 2, 2]),
        (80, 3, [27, 27, 26]),
    ],
)
def test_what_is_left_over_goes_inside_first(num_layers: int, pp: int, expected: list[int]) -> None:
    assert sizes(num_layers, pp) == expected


def test_sizes_may_be_given() -> None:
    topology = Topology(pp=3, pp_layers=[1, 5, 2])
    assert topology.pp_layers == (1, 5, 2) and hash(topology)
    assert split_layers(8, topology) == (range(0, 1), range(1, 6), range(6, 8))
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert topology.at(2).pp_layers == (1, 5, 2) != Topology(pp=3).pp_layers
    with pytest.raises(ShapeError, match=r"\(1, 5, 2\) add up to 8, the model has 9 layers"):
        split_layers(9, topology)
    with pytest.raises(ShapeError, match="the model has 7 layers"):
        split_layers(7, topology)


@pytest.mark.parametrize("given", [(2, 0), (2, -1), (2, True), (1.5, 2), "12", 3, (None, 1)])
def test_sizes_that_are_none(given: Any) -> None:
    with pytest.raises(TopologyError, match="pp_layers"):
        Topology(pp=2, pp_layers=given)


@pytest.mark.parametrize("given", [(), (4,), (1, 1, 2)])
def test_sizes_for_other_stages(given: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError, match=rf"for {len(given)} pipeline stages, pp=2"):
        Topology(pp=2, pp_layers=given)


def test_more_stages_than_layers() -> None:
    with pytest.raises(ShapeError, match=r"pp=4.*3 layers .*pp of at most 3"):
        split_layers(3, Topology(pp=4))


def test_a_stage_knows_the_ends() -> None:
    stages = [PipelineStage.of(5, Topology(tp=2, pp=3, rank=rank)) for rank in range(6)]
    assert [stage.layers for stage in stages[::2]] == [range(2), range(2, 4), range(4, 5)]
    assert stages[::2] == stages[1::2], "all ranks of a stage hold the same layers"
    assert [(s.is_first, s.is_last) for s in stages[::2]] == [(1, 0), (0, 0), (0, 1)]
    only = PipelineStage.of(5, Topology())
    assert only.is_first and only.is_last


@pytest.mark.parametrize(
    "layers", [range(0), range(2, 2), range(-1, 2), range(3, 6), range(0, 4, 2), range(3, 1, -1)]
)
def test_ranges_that_are_no_stage(layers: range) -> None:
    with pytest.raises(TopologyError, match="5 layers"):
        PipelineStage(layers, 5)
    with pytest.raises(TopologyError, match="5 layers"):
        BuildContext.of(layer_range=layers).pipeline_stage(5)


def test_an_injected_range_overrules_the_topology() -> None:
    ctx = BuildContext.of(Topology(pp=2), layer_range=range(1, 5))
    assert ctx.pipeline_stage(5) == PipelineStage(range(1, 5), 5)


def test_a_placeholder_holds_nothing_and_says_who_it_is() -> None:
    absent = Elsewhere("model.layers.3", PipelineStage(range(0, 2), 4))
    assert not list(absent.parameters()) and not absent.state_dict()
    with pytest.raises(TopologyError, match=r"model\.layers\.3 is on another.*layers 0 to 1 of 4"):
        absent(torch.zeros(1), batch=None)
