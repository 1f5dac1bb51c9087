"""Parts: what is moved at once, small enough to stay in the cache while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..parallel import Box, Piece, box_numel
from .layouts import Placement
from .source import TensorInfo

PART_BYTES = 8 << 20
"""Bytes of a part, unless one row has more."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one piece of a placement.

    Args:
        placement: whose.
        piece: of the placement.
        source: box of the checkpoint tensor, inside the piece's.
        target: box of the parameter that it fills.
    """

    placement: Placement
    piece: Piece
    source: Box
    target: Box

    @property
    def tensor(self) -> TensorInfo:
        """Which tensor is read."""
        return self.placement.tensor

    @property
    def parameter(self) -> str:
        """Which parameter is written."""
        return self.placement.parameter

    @property
    def nbytes(self) -> int:
        """Checkpoint bytes."""
        return self.tensor.nbytes(self.source)


def parts_of(placement: Placement, *, cut: bool) -> Iterator[Part]:
    """All parts of a placement, in storage order; none where this rank takes nothing.

    Args:
        placement: whose.
        cut: False takes each piece as one part, for sources to which a part may cost a whole.
    """
    for piece in placement.pieces:
        if not cut:
            yield Part(placement, piece, piece.source, piece.target)
            continue
        for source, target in _row_blocks(piece, placement.tensor.dtype.itemsize):
            yield Part(placement, piece, source, target)


def _row_blocks(piece: Piece, itemsize: int) -> Iterator[tuple[Box, Box]]:
    """(source, target) boxes that together are the piece's."""
    source, more = piece.source, len(piece.target) - len(piece.source)
    stacked, target = piece.target[:more], piece.target[more:]
    if not source:
        yield source, piece.target
        return
    (first, last), at = source[0], target[0][0]
    row_bytes = box_numel(source[1:]) * itemsize
    rows = max(1, PART_BYTES // row_bytes)
    for start in range(first, last, rows):
        stop, shift = min(start + rows, last), at - first
        here, there = (start, stop), (start + shift, stop + shift)
        yield (here, *source[1:]), (*stacked, there, *target[1:])
