"""Layouts: how the tensors that are for one parameter fill it; equal ones are found once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..parallel import Box, Piece, ShardId, ShardSpec
from .routing import ClaimGroup, Form
from .source import TensorInfo


@dataclass(frozen=True, slots=True)
class Placement:
    """The slices of one checkpoint tensor that fill one parameter, or one part of it."""

    tensor: TensorInfo
    parameter: str
    shard_id: ShardId
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Checkpoint bytes this rank reads."""
        return sum(self.tensor.nbytes(piece.source) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Layout:
    """How tensors of one form fill a parameter of one spec.

    Args:
        parts: number of a claim in its group, and the slices of it that hold anything here; only
            claims that fit.
        conversions: float widths that change, once for each tensor that does.
        nbytes: checkpoint bytes that are read.
        shape: of the parameter, on the rank.
        padding: boxes of it that no tensor fills.
    """

    parts: tuple[tuple[int, tuple[Piece, ...]], ...]
    conversions: tuple[str, ...]
    nbytes: int
    shape: tuple[int, ...]
    padding: tuple[Box, ...]


class Layouts:
    """Layouts without a fault, by all that decides them; layers and ranks that are alike share them.

    That is the shard spec, the parameter's dtype and the tensors' form, compared in full. Each spec
    and form is kept once and known by its identity from then on: those of many experts are long.
    """

    def __init__(self) -> None:
        """None yet."""
        self._found: dict[tuple[int, torch.dtype, int], Layout] = {}
        self._numbers: dict[ShardSpec | Form, int] = {}
        self._by_identity: dict[int, int] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)

    def get(self, spec: ShardSpec, dtype: torch.dtype, form: Form) -> Layout | None:
        """The layout of a case that was seen before."""
        return self._found.get((self._number(spec), dtype, self._number(form)))

    def put(self, spec: ShardSpec, dtype: torch.dtype, form: Form, layout: Layout) -> None:
        """Keep the layout of a case."""
        self._found[self._number(spec), dtype, self._number(form)] = layout

    def _number(self, value: ShardSpec | Form) -> int:
        """One number for all equal values."""
        known = self._by_identity.get(id(value))
        if known is None:
            known = self._numbers.get(value)
        if known is None:
            # Only what is kept: the identity of anything else may be given to another object.
            known = self._numbers[value] = self._by_identity[id(value)] = len(self._numbers)
        return known


@dataclass(frozen=True, slots=True)
class Fill:
    """One parameter, the tensors that are for it, and how they fill it."""

    parameter: str
    group: ClaimGroup
    layout: Layout

    @property
    def placements(self) -> Iterator[tuple[int, Placement]]:
        """Place in storage order and write, of each tensor that fits."""
        for number, pieces in self.layout.parts:
            claim = self.group.claims[number]
            yield claim.at, Placement(claim.tensor, self.parameter, claim.shard_id, pieces)
