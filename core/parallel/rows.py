"""Which rows every rank holds at every depth: pure functions of all attention groups' row counts.

Rows of all groups are numbered one group after the other, padding at the end of each group. All
ranks know all counts, so nobody asks anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import BoundaryError
from .axes import Axes


class Sizes(NamedTuple):
    """Rows a rank holds at every depth: of the batch, and of the rows selected for the head."""

    rows: tuple[int, ...]
    selected: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Size of a batch as the planner sees it.

    Args:
        rows: of the largest attention group.
        total: of all groups together; only told apart from padding where ragged.
        ragged: groups keep their own row counts; else all are padded to the largest.
        selected: rows of a group that reach the head; None for all.
        cuts: a group's rows can be cut into a slice for each of its ranks, if need be by padding.
    """

    rows: int
    total: int
    ragged: bool = False
    selected: int | None = None
    cuts: bool = True

    @staticmethod
    def bucket(
        counts: tuple[int, ...], *, ragged: bool = False, cuts: bool = True, parts: int = 1
    ) -> Batch:
        """The upper end of the bucket of a batch with these rows: powers of two, for each slice.

        Args:
            counts: rows of every attention group.
            ragged, cuts: as in Batch.
            parts: slices of a group's rows; padding for them never leads to another bucket.
        """
        rows = parts * _power_of_two(-(-max(counts) // parts))
        every = rows * len(counts)
        total = min(parts * _power_of_two(-(-sum(counts) // parts)), every) if ragged else every
        return Batch(rows, total, ragged, cuts=cuts)

    def sizes(self, axes: Axes) -> Sizes:
        """Rows of the rank that holds most, padded so that they can be cut."""
        kept = self.rows if self.selected is None else self.selected
        return Sizes(self._at_depths(axes, self.rows), self._at_depths(axes, kept))

    def _at_depths(self, axes: Axes, rows: int) -> tuple[int, ...]:
        at, parts = axes.attn_depth, axes.size(axes.attn_depth, axes.count)
        rows, total = -(-rows // parts) * parts, -(-self.total // parts) * parts
        shallow = [rows * axes.size(depth, at) for depth in range(at)]
        deep = [rows // axes.size(at, depth) for depth in range(at, axes.count + 1)]
        return (*(min(total, all_) if self.ragged else all_ for all_ in shallow), *deep)


@dataclass(frozen=True)
class RowMap:
    """Rows of one batch.

    Args:
        axes: of the pipeline stage.
        counts: real rows of every attention group.
        held: the same with padding.
    """

    axes: Axes
    counts: tuple[int, ...]
    held: tuple[int, ...]

    @staticmethod
    def of(
        axes: Axes, counts: tuple[int, ...], *, ragged: bool = False, sliced: bool = False
    ) -> RowMap:
        """Lay out a batch.

        Args:
            axes: of the pipeline stage.
            counts: real rows of every attention group.
            ragged: groups keep their own counts; else all are padded to the largest.
            sliced: the plan cuts a group's rows, so groups are padded to a multiple of the cuts.

        Raises:
            BoundaryError: not one count for each group, or a negative one.
        """
        groups = axes.size(0, axes.attn_depth)
        if len(counts) != groups or min(counts) < 0:
            raise BoundaryError(
                f"row counts {counts}: give one count >= 0 for each of the {groups} attention groups"
            )
        parts = axes.size(axes.attn_depth, axes.count) if sliced else 1
        wanted = counts if ragged else (max(counts),) * groups
        return RowMap(axes, counts, tuple(-(-count // parts) * parts for count in wanted))

    def span(self, tp_rank: int, depth: int) -> range:
        """Numbers of the rows, padding included, that a rank of the stage holds at a depth.

        Raises:
            BoundaryError: a group's rows cannot be cut so.
        """
        axes, at = self.axes, self.axes.attn_depth
        digits = axes.digits(tp_rank)
        first, groups, part, parts = 0, axes.size(min(depth, at), at), 0, axes.size(at, depth)
        for axis in range(axes.count):
            if axis < at:
                first = first * axes.sizes[axis] + (digits[axis] if axis < depth else 0)
            elif axis < depth:
                part = part * axes.sizes[axis] + digits[axis]
        start, rows = sum(self.held[:first]), sum(self.held[first : first + groups])
        if rows % parts:
            raise BoundaryError(
                f"{rows} rows of an attention group cannot be cut into {parts} equal slices; lay "
                "the batch out with sliced=True"
            )
        rows //= parts
        return range(start + part * rows, start + (part + 1) * rows)

    def cut(self, tp_rank: int, outer: int, inner: int) -> slice:
        """The rows of a deeper depth, counted inside the rows of a shallower one."""
        start, rows = self.span(tp_rank, outer).start, self.span(tp_rank, inner)
        return slice(rows.start - start, rows.stop - start)

    def sizes(self, tp_rank: int) -> tuple[int, ...]:
        """Rows of a rank at every depth; 0 where they cannot be cut so deep."""
        at, axes = self.axes.attn_depth, self.axes
        mine = len(self.span(tp_rank, at))
        deep = [axes.size(at, depth) for depth in range(at + 1, axes.count + 1)]
        return (
            *(len(self.span(tp_rank, depth)) for depth in range(at + 1)),
            *(0 if mine % parts else mine // parts for parts in deep),
        )

    def real(self, tp_rank: int, depth: int) -> tuple[slice, ...]:
        """Where, inside a rank's rows at a depth, each group's real rows are; empty ones left out."""
        span, start, found = self.span(tp_rank, depth), 0, []
        for count, held in zip(self.counts, self.held, strict=True):
            first, last = max(start, span.start), min(start + count, span.stop)
            if first < last:
                found.append(slice(first - span.start, last - span.start))
            start += held
        return tuple(found)


class GroupRows(NamedTuple):
    """Rows of one forward in every attention group; equal on all ranks.

    Args:
        counts: rows that carry a token.
        held: the same with padding, which every rank of the group computes too.
        selected: rows that leave the model: logits, log-probabilities, pooled rows.
        ragged: groups keep their own counts; else all are padded to the largest.
    """

    counts: tuple[int, ...]
    held: tuple[int, ...]
    selected: tuple[int, ...]
    ragged: bool = False


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
