"""ShardSpec: which slice of which checkpoint tensor fills which slice of a parameter.

Everything is a box, a (start, stop) pair for each dimension, in elements as stored (packing and
block sizes are resolved when the spec is made). Specs are pure data: the loader copies boxes,
the ledger adds them up, preflight proves coverage, and putting all ranks' boxes together must
give the checkpoint tensor back, which a property test checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ShapeError

Box = tuple[tuple[int, int], ...]


class ExpertShard(NamedTuple):
    """Part of a parameter that stacks experts.

    Args:
        expert: global number.
        part: of the expert: 0, 1 for gate, up; None where one tensor is all of it.
    """

    expert: int
    part: str | int | None = None

    def __str__(self) -> str:
        """``shard 0 of expert 5``."""
        whose = f"expert {self.expert}"
        return whose if self.part is None else f"shard {self.part!r} of {whose}"


ShardId = str | int | ExpertShard | None
"""Part of a stacked parameter: "q", "k", "v", 0, 1, …, or of an expert; None for a parameter fed by
one tensor."""


def box_numel(box: Box) -> int:
    """Elements in a box."""
    return math.prod(stop - start for start, stop in box)


def whole(shape: tuple[int, ...]) -> Box:
    """The box that covers a tensor of this shape."""
    return tuple((0, size) for size in shape)


def box_slices(box: Box) -> tuple[slice, ...]:
    """The box as an index."""
    return tuple(slice(start, stop) for start, stop in box)


def box_shape(box: Box) -> tuple[int, ...]:
    """Sizes of a box."""
    return tuple(stop - start for start, stop in box)


@dataclass(frozen=True)
class Piece:
    """A box of the checkpoint tensor and the box of the parameter it fills.

    Sizes are equal, but for leading dimensions of one element: a parameter that stacks experts has a
    dimension more than the tensor of one expert.
    """

    source: Box
    target: Box


@dataclass(frozen=True)
class Segment:
    """What one checkpoint tensor contributes to a parameter on this rank.

    Args:
        shard_id: which part of a stacked parameter; None when the tensor is the whole.
        source_shape: shape of the full checkpoint tensor, all ranks together.
        pieces: the boxes this rank takes. Empty when it takes nothing.
    """

    shard_id: ShardId
    source_shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class ShardSpec:
    """How one parameter of one rank is filled.

    Args:
        shape: the parameter's shape on this rank.
        segments: one for each checkpoint tensor that feeds it.
        concat_dim: dimension along which a checkpoint that stores the stacked tensor whole
            (``qkv_proj``, ``gate_up_proj``) lines its segments up; None when that cannot be.
        fused: the same as one tensor that lines its segments up in another way (experts).
        padding: boxes of the parameter that no checkpoint element fills; zeroed at load.
        optional: the checkpoint may leave this parameter out (it keeps its initial value).
    """

    shape: tuple[int, ...]
    segments: tuple[Segment, ...]
    concat_dim: int | None = None
    padding: tuple[Box, ...] = ()
    optional: bool = False
    fused: Segment | None = None

    @property
    def can_be_fused(self) -> bool:
        """Whether a checkpoint may store all segments as one tensor."""
        return self.concat_dim is not None or self.fused is not None

    @property
    def shard_ids(self) -> tuple[ShardId, ...]:
        """Segment ids in parameter order."""
        return tuple(segment.shard_id for segment in self.segments)

    def segment(self, shard_id: ShardId) -> Segment:
        """The segment with that id; for None on a stacked parameter, the fused tensor.

        Raises:
            ShapeError: no such segment, or the parameter has no fused form.
        """
        found = self._by_id.get(shard_id)
        if found is None and shard_id is None:
            found = self.fused
            if self.concat_dim is not None:
                found = self._joined(self.concat_dim)
        if found is None:
            raise ShapeError(f"no shard {shard_id!r} in a parameter with shards {self._told_ids()}")
        return found

    @cached_property
    def _by_id(self) -> dict[ShardId, Segment]:
        return {segment.shard_id: segment for segment in self.segments}

    def _told_ids(self) -> str:
        ids = [repr(shard_id) for shard_id in self.shard_ids]
        shown = ids if len(ids) <= 8 else [*ids[:3], "…", ids[-1]]
        return ", ".join(shown)

    def _joined(self, dim: int) -> Segment:
        """All segments as slices of one tensor that stacks their sources along dim."""
        pieces: list[Piece] = []
        offset = 0
        for segment in self.segments:
            for piece in segment.pieces:
                start, stop = piece.source[dim]
                moved = (start + offset, stop + offset)
                source = (*piece.source[:dim], moved, *piece.source[dim + 1 :])
                pieces.append(Piece(source, piece.target))
            offset += segment.source_shape[dim]
        first = self.segments[0].source_shape
        return Segment(None, (*first[:dim], offset, *first[dim + 1 :]), tuple(pieces))


def plain_spec(shape: tuple[int, ...]) -> ShardSpec:
    """A parameter that every rank holds whole."""
    box = whole(shape)
    return ShardSpec(shape, (Segment(None, shape, (Piece(box, box),)),))


@dataclass(frozen=True)
class Span:
    """A run of features: where it starts in the full tensor and where it lands here.

    Args:
        shard_id: segment of a stacked parameter, or None.
        total: features of the full tensor, all ranks together.
        start: first feature this rank takes.
        size: features this rank takes.
        offset: first place they take here.
    """

    shard_id: ShardId
    total: int
    start: int
    size: int
    offset: int = 0


@dataclass(frozen=True)
class Dim:
    """One dimension of a parameter, said in terms of the layer's features.

    Args:
        axis: ``out`` or ``in`` features, ``segment`` (one place for each part of a stacked
            layer, such as a scale for each of q, k, v), or ``whole`` (``size`` places, not split).
        unit: features held by one stored element: the packing factor or the block size.
        size: places, for ``whole`` only.
        round_up: the last element may cover fewer than ``unit`` features (block scales).
    """

    axis: Literal["out", "in", "segment", "whole"]
    unit: int = 1
    size: int = 1
    round_up: bool = False


OUT, IN, SEGMENT = Dim("out"), Dim("in"), Dim("segment")


@dataclass(frozen=True)
class LinearPartition:
    """How a linear layer's features are divided, before any parameter exists.

    A quantization method turns it into parameters: ``partition.spec(OUT, IN)`` is a plain
    weight, ``partition.spec(Dim("in", unit=8), OUT)`` an int32 that packs eight inputs.

    Args:
        outputs: output features, a span for each segment, in parameter order.
        inputs: input features.
        out_padding: places after the last output feature that no checkpoint fills (vocabulary).
        where: module path for messages.
    """

    outputs: tuple[Span, ...]
    inputs: Span
    out_padding: int = 0
    where: str = field(default="", compare=False)

    @property
    def out_features(self) -> int:
        """Output features on this rank, all segments, padding included."""
        return sum(span.size for span in self.outputs) + self.out_padding

    @property
    def in_features(self) -> int:
        """Input features on this rank."""
        return self.inputs.size

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """Output features of each segment on this rank."""
        return tuple(span.size for span in self.outputs)

    def spec(self, *dims: Dim) -> ShardSpec:
        """The ShardSpec of a parameter with these dimensions.

        Raises:
            ShapeError: a packed unit or a block would be cut between ranks.
        """
        stacked = any(dim.axis in ("out", "segment") for dim in dims)
        spans = self.outputs if stacked else self.outputs[:1]
        segments = tuple(
            self._segment(index, span, dims, stacked) for index, span in enumerate(spans)
        )
        concat = next((at for at, dim in enumerate(dims) if dim.axis == "out"), None)
        shape = tuple(self._local(dim) for dim in dims)
        padding = self._padding(shape, dims) if self.out_padding and concat is not None else ()
        return ShardSpec(shape, segments, concat if len(segments) > 1 else None, padding)

    def _padding(self, shape: tuple[int, ...], dims: tuple[Dim, ...]) -> tuple[Box, ...]:
        """The box past the last output feature."""
        at = next(i for i, dim in enumerate(dims) if dim.axis == "out")
        first = shape[at] - self._units(self.out_padding, dims[at], "padding", exact=True)
        return ((*whole(shape)[:at], (first, shape[at]), *whole(shape)[at + 1 :]),)

    def _segment(self, index: int, span: Span, dims: tuple[Dim, ...], stacked: bool) -> Segment:
        places = [self._place(index, span, dim) for dim in dims]
        piece = Piece(tuple(p[1] for p in places), tuple(p[2] for p in places))
        shard_id = span.shard_id if stacked else None
        return Segment(shard_id, tuple(p[0] for p in places), (piece,))

    def _place(
        self, index: int, out: Span, dim: Dim
    ) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Full size, source interval and target interval of one dimension of one segment."""
        if dim.axis == "whole":
            return dim.size, (0, dim.size), (0, dim.size)
        if dim.axis == "segment":
            return 1, (0, 1), (index, index + 1)
        span = out if dim.axis == "out" else self.inputs
        total = self._units(span.total, dim, "size")
        start = self._units(span.start, dim, "first feature", exact=True)
        count = self._units(span.size, dim, "shard", last=span.start + span.size == span.total)
        offset = self._units(span.offset, dim, "offset", exact=True)
        return total, (start, start + count), (offset, offset + count)

    def _local(self, dim: Dim) -> int:
        match dim.axis:
            case "whole":
                return dim.size
            case "segment":
                return len(self.outputs)
            case "in":
                return self._units(self.inputs.size, dim, "shard", last=True)
        last = self.outputs[-1]
        end = last.offset + last.size
        filled = self._units(end, dim, "size", last=last.start + last.size == last.total)
        return filled + self._units(self.out_padding, dim, "padding", exact=True)

    def _units(
        self, features: int, dim: Dim, what: str, *, exact: bool = False, last: bool = True
    ) -> int:
        if features % dim.unit and (exact or not dim.round_up or not last):
            at = f"{self.where}: " if self.where else ""
            raise ShapeError(
                f"{at}{dim.axis}put {what} of {features} features is not a multiple of {dim.unit}, "
                "the features one stored element (pack or block) holds; use fewer ranks"
            )
        return -(-features // dim.unit)


class ShardedParameter(nn.Parameter):
    """A parameter that knows how a checkpoint fills it.

    Any dtype; gradients are off, this is an inference package.
    """

    shard_spec: ShardSpec

    def __new__(cls, data: Tensor, shard_spec: ShardSpec) -> ShardedParameter:
        """Wrap data, whose shape must be the spec's.

        Raises:
            ShapeError: shapes differ.
        """
        if tuple(data.shape) != shard_spec.shape:
            raise ShapeError(
                f"a parameter of shape {list(data.shape)} cannot carry a shard spec for "
                f"{list(shard_spec.shape)}"
            )
        self = super().__new__(cls, data, requires_grad=False)
        self.shard_spec = shard_spec
        return self

    def __init__(self, data: Tensor, shard_spec: ShardSpec) -> None:
        """Everything is done in ``__new__``."""

    def __deepcopy__(self, memo: dict[int, object]) -> ShardedParameter:
        """A copy with its own storage and the same spec."""
        if id(self) in memo:
            known = memo[id(self)]
            assert isinstance(known, ShardedParameter)
            return known
        copy = ShardedParameter(
            self.data.clone(memory_format=torch.preserve_format), self.shard_spec
        )
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, proto: object) -> tuple[object, ...]:
        """Pickle as (data, spec)."""
        return (ShardedParameter, (self.data, self.shard_spec))


@dataclass(frozen=True)
class ParameterFactory:
    """Makes empty sharded parameters on one device in one dtype.

    Args:
        dtype: of floating-point weights.
        device: where they live; ``meta`` for shapes only.
        poison: fill with NaN (integers: a large odd pattern), so that an element nobody wrote
            shows; used by tests. In production the ledger is the proof.
    """

    dtype: torch.dtype
    device: torch.device
    poison: bool = field(default=False)

    def __call__(self, spec: ShardSpec, dtype: torch.dtype | None = None) -> ShardedParameter:
        """An uninitialised parameter for the spec, in dtype or the factory's."""
        data = torch.empty(spec.shape, dtype=dtype or self.dtype, device=self.device)
        if self.poison and data.device.type != "meta":
            data.fill_(float("nan") if data.is_floating_point() else 0x55)
        return ShardedParameter(data, spec)
