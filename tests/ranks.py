"""Run something on every rank of a simulated topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from archzoo.context import BuildContext
from archzoo.layers.linear import LinearBase
from archzoo.parallel import Group, Groups, ShardedParameter, Topology, box_slices
from archzoo.parallel.in_process import InProcessWorld

T = TypeVar("T")


def contexts(
    topology: Topology, dtype: torch.dtype = torch.float32, poison: bool = True
) -> tuple[InProcessWorld, list[BuildContext]]:
    """A world and one poisoned build context for each rank."""
    world = InProcessWorld(topology.world_size)
    return world, [
        BuildContext.of(
            topology.at(rank), communicators=world.factory(rank), dtype=dtype, poison=poison
        )
        for rank in range(topology.world_size)
    ]


def on_ranks(
    topology: Topology, function: Callable[[BuildContext], T], dtype: torch.dtype = torch.float32
) -> list[T]:
    """function(ctx) on every rank, results in rank order."""
    world, each = contexts(topology, dtype)
    return world.run(lambda rank: function(each[rank]))


def with_groups(ctx: BuildContext, **groups: Group) -> BuildContext:
    """The same context with other groups of these names."""
    return replace(ctx, groups=Groups({**ctx.groups.by_name, **groups}))


def fill(parameter: nn.Parameter, sources: dict[object, torch.Tensor]) -> None:
    """Write a rank's slices of full tensors, by shard id, into a parameter."""
    assert isinstance(parameter, ShardedParameter)
    for segment in parameter.shard_spec.segments:
        source = sources[segment.shard_id]
        assert tuple(source.shape) == segment.source_shape
        for piece in segment.pieces:
            parameter.data[box_slices(piece.target)] = source[box_slices(piece.source)]
    for box in parameter.shard_spec.padding:
        parameter.data[box_slices(box)] = 0


def finish(layer: LinearBase) -> None:
    """What the loader does last."""
    layer.quant_method.process_weights_after_loading(layer)
