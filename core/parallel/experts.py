"""Experts: which of them a rank holds, and the shard specs of parameters that stack them.

The ranks of a pipeline stage hold experts in two ways at once: whole experts are dealt to the ``ep``
parts of the stage, and the ``moe_tp`` ranks of a part split each of theirs. So every rank holds some
features of some experts::

    tp 4, ep 2, 6 experts     rank 0    rank 1    rank 2    rank 3
    experts                   0 1 2     0 1 2     3 4 5     3 4 5
    half of each              first     second    first     second
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ..errors import ShapeError
from .group import Group
from .shards import Box, Dim, ExpertShard, LinearPartition, Piece, Segment, ShardSpec


def deal(total: int, parts: int, where: str = "") -> tuple[range, ...]:
    """Experts of every part: runs of numbers, the first ones longer by one where they must be.

    Args:
        total: experts of a layer.
        parts: that they are dealt to.
        where: module path, for the message.

    Raises:
        ShapeError: fewer experts than parts.

    >>> deal(5, 2)
    (range(0, 3), range(3, 5))
    """
    if parts > total:
        at = f"{where}: " if where else ""
        raise ShapeError(
            f"{at}num_experts={total} cannot be dealt to ep={parts} parts, each needs at least one; "
            f"use ep <= {total}, the ranks left over split experts"
        )
    size, more = divmod(total, parts)
    starts = [part * size + min(part, more) for part in range(parts + 1)]
    return tuple(range(starts[part], starts[part + 1]) for part in range(parts))


@dataclass(frozen=True)
class ExpertLayout:
    """The experts of one rank.

    Args:
        total: experts of the layer.
        here: global numbers of those held here.
    """

    total: int
    here: range

    @staticmethod
    def of(total: int, ep: Group, where: str = "") -> ExpertLayout:
        """The experts of a rank of the ``ep`` group.

        Raises:
            ShapeError: fewer experts than ranks in the group.
        """
        return ExpertLayout(total, deal(total, ep.size, where)[ep.rank])


@dataclass(frozen=True)
class ExpertPartition:
    """How one linear layer of every expert is divided, before any parameter exists.

    Args:
        experts: which are here.
        linear: how the features of each are divided.
        where: module path for messages.
    """

    experts: ExpertLayout
    linear: LinearPartition
    where: str = field(default="", compare=False)

    def spec(self, *dims: Dim) -> ShardSpec:
        """The ShardSpec of a parameter: experts here, then these dimensions of each.

        A checkpoint stores a tensor for each expert and part, or one for all of them: experts, then
        the parts of each lined up along the output features.

        Raises:
            ShapeError: a packed unit or a block would be cut between ranks.
        """
        return _stacked(self.experts, self.linear, dims)


@lru_cache(maxsize=64)  # all layers of a model have equal specs
def _stacked(experts: ExpertLayout, linear: LinearPartition, dims: tuple[Dim, ...]) -> ShardSpec:
    one = linear.spec(*dims)
    segments = tuple(
        Segment(
            _shard_of(expert, segment),
            segment.source_shape,
            tuple(
                Piece(piece.source, _at(expert - experts.here.start, piece.target))
                for piece in segment.pieces
                if expert in experts.here
            ),
        )
        for expert in range(experts.total)
        for segment in one.segments
    )
    whole = one.segment(None)
    fused = Segment(
        None,
        (experts.total, *whole.source_shape),
        tuple(
            Piece(_at(expert, piece.source), _at(expert - experts.here.start, piece.target))
            for expert in experts.here
            for piece in whole.pieces
        ),
    )
    return ShardSpec((len(experts.here), *one.shape), segments, fused=fused)


def _shard_of(expert: int, segment: Segment) -> ExpertShard:
    part = segment.shard_id
    assert not isinstance(part, ExpertShard)
    return ExpertShard(expert, part)


def _at(index: int, box: Box) -> Box:
    return ((index, index + 1), *box)
