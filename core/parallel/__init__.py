"""Explicit topology: groups as data, head arithmetic, shard specs, communicators."""

from .experts import ExpertLayout, ExpertPartition
from .group import Communicator, CommunicatorFactory, Group, Groups, no_communicator, shape_only
from .heads import HeadLayout, divide
from .in_process import InProcessWorld
from .shards import (
    IN,
    OUT,
    SEGMENT,
    Box,
    Dim,
    ExpertShard,
    LinearPartition,
    ParameterFactory,
    Piece,
    Segment,
    ShardedParameter,
    ShardId,
    ShardSpec,
    Span,
    box_numel,
    box_shape,
    box_slices,
    plain_spec,
    whole,
)
from .spreading import spread
from .stages import Elsewhere, PipelineStage, split_layers
from .topology import GROUP_NAMES, Topology

__all__ = [
    "GROUP_NAMES",
    "IN",
    "OUT",
    "SEGMENT",
    "Box",
    "Communicator",
    "CommunicatorFactory",
    "Dim",
    "Elsewhere",
    "ExpertLayout",
    "ExpertPartition",
    "ExpertShard",
    "Group",
    "Groups",
    "HeadLayout",
    "InProcessWorld",
    "LinearPartition",
    "ParameterFactory",
    "Piece",
    "PipelineStage",
    "Segment",
    "ShardId",
    "ShardSpec",
    "ShardedParameter",
    "Span",
    "Topology",
    "box_numel",
    "box_shape",
    "box_slices",
    "divide",
    "no_communicator",
    "plain_spec",
    "shape_only",
    "split_layers",
    "spread",
    "whole",
]
