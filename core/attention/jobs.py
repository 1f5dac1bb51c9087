"""The units a forward is cut into: pure data that says which query rows meet which keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Where one request's rows are.

    Args:
        row: its first query row.
        queries: query rows; they are the last of its sequence.
        fresh_row: its first new K/V row.
        fresh: new K/V rows.
        total: tokens of its sequence, new ones included.
        pool_row: its row of the slot table.
    """

    row: int
    queries: int
    fresh_row: int
    fresh: int
    total: int
    pool_row: int

    @property
    def position(self) -> int:
        """Position of its first query."""
        return self.total - self.queries


@dataclass(frozen=True)
class Block:
    """Some query rows of a SequenceJob and the keys they are attended over.

    Args:
        start, stop: query rows, counted from the job's first.
        key_start, key_stop: keys, counted from the job's first.
        shift: how many tokens the first key lies before the first query; None when every query
            of the block sees every key of it.
    """

    start: int
    stop: int
    key_start: int
    key_stop: int
    shift: int | None


@dataclass(frozen=True)
class SequenceJob:
    """One request: keys from the cache, then keys from this forward's own K/V rows.

    Args:
        row: its first query row.
        keys: how many there are in all.
        slots: (C,) int64 where the cached ones lie, first; None when they lie consecutively.
        run: the first of consecutive slots; None when ``slots`` says where, or none is cached.
        fresh: rows of k and v that follow the cached ones.
        blocks: its query rows.
    """

    row: int
    keys: int
    slots: Tensor | None
    run: int | None
    fresh: slice
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class GroupJob:
    """Requests with one query row each, all their keys in the cache.

    Args:
        rows: (B,) query rows; a slice when they are neighbours.
        sequences: B.
        slots: (B * L,) int64, padded to the longest sequence with a slot of the same request.
        hidden: (B, 1, 1, L) bool, True in the padding; None without any.
    """

    rows: slice | Tensor
    sequences: int
    slots: Tensor
    hidden: Tensor | None


Job = SequenceJob | GroupJob
