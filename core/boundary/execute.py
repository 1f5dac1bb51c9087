"""Makes a boundary's moves on one rank's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, overload

from torch import Tensor

from ..errors import BoundaryError
from ..parallel.moving import RowMover
from ..parallel.placement import Term
from ..planning.facts import AUX, StageFacts
from ..planning.plan import Move
from ..planning.steps import Step, Stream

Norm = Callable[[Tensor], Tensor]


class AddNorm(Protocol):
    """A norm that can join the residual addition."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...


class Held(NamedTuple):
    """The value of a term on this rank, and the post-norm that it awaits."""

    value: Tensor
    post: Norm | None = None


class Values:
    """Values of a stream's terms. Each is taken once, so nothing can be paid or added twice."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[tuple[Term, Held]] = []

    def put(self, term: Term, held: Held) -> None:
        """Record a value, (T, D), that lies like term."""
        self._held.append((term, held))

    def take(self, term: Term) -> Held:
        """The oldest value that lies so; it is gone afterwards.

        Raises:
            BoundaryError: there is none.
        """
        for at, (found, held) in enumerate(self._held):
            if found == term:
                del self._held[at]
                return held
        raise BoundaryError(
            f"no value {tuple(term)} in a stream of {self.terms}; values are taken once, by the "
            "moves of the plan that put them there"
        )

    @property
    def terms(self) -> Stream:
        """What is held now."""
        return tuple(sorted(term for term, _ in self._held))


class Selection(NamedTuple):
    """Rows that reach the head: how they move, and which attention rows they are (None: all)."""

    mover: RowMover
    picked: Tensor | None


Fused = Callable[["Crossing", tuple[Step, ...]], None]


def add_norm(crossing: Crossing, steps: tuple[Step, ...]) -> None:
    """merge, read: the norm adds the residual itself."""
    take, term = crossing.values.take, steps[0].src
    residual, update = take(term).value, take(term).value
    normed, total = crossing.norms[crossing.stage.branches[0].name](update, residual)
    crossing.read(steps[-1].src, total, normed)


FUSED: Mapping[str, Fused] = {"add_norm": add_norm}
"""By provider, what does its steps at once."""


@dataclass
class Crossing:
    """One rank on its way through one boundary.

    Args:
        stage: whose boundary it is.
        values: the stream; moves take from it and put into it.
        mover: moves the batch's rows.
        norms: by branch, the norm it reads through.
        selection: for a head that selects rows.
        fused: by provider, what does its steps at once; else they are done one by one.
        rows: after the read, by reader, its rows.
    """

    stage: StageFacts
    values: Values
    mover: RowMover
    norms: Mapping[str, AddNorm]
    selection: Selection | None = None
    fused: Mapping[str, Fused] = field(default_factory=lambda: FUSED)
    rows: dict[str, Tensor] = field(default_factory=dict)
    _selected: bool = False

    def run(self, moves: tuple[Move, ...]) -> dict[str, Tensor]:
        """Make the moves; returns the rows of every branch, and of ``aux``."""
        for move in moves:
            if move.provider in self.fused:
                self.fused[move.provider](self, move.steps)
                continue
            for step in move.steps:
                self._move_rows(step) if step.on else self._move_term(step)
        return self.rows

    def read(self, term: Term, total: Tensor, normed: Tensor | None = None) -> None:
        """Give the settled stream to every reader.

        Args:
            term: how total lies.
            total: sum of the stream, (T, D).
            normed: what the first branch reads, where that is known already.
        """
        stage, first = self.stage, self.stage.branches[0]
        if normed is None:
            normed = self.norms[first.name](total) if stage.normalises else total
        kept = normed if stage.read == "replace" else total
        if stage.read != "take":
            self.values.put(term, Held(kept))
        for branch in stage.branches:
            alone = not (stage.shares_rows or branch is first)
            self.rows[branch.name] = self.norms[branch.name](kept) if alone else normed
        if stage.capture:
            self.rows[AUX] = kept

    def _move_term(self, step: Step) -> None:
        value, post = self.values.take(step.src)
        if step.op == "read":
            return self.read(step.src, value)
        if step.op == "merge":
            value = value + self.values.take(step.src).value
        elif step.op == "post":
            assert post is not None
            value, post = post(value), None
        else:
            value = self.mover.move(value, step.op, step.src, step.dst)
        self.values.put(step.dst, Held(value, post))

    def _move_rows(self, step: Step) -> None:
        value, chosen = self.rows[step.on[0]], self.selection
        if step.op == "select":
            if chosen is None:
                raise BoundaryError(f"{self.stage.name} selects rows; give Crossing selection=")
            value, self._selected = chosen.mover.pick(value, chosen.picked), True
        else:
            head = self._selected and step.on != (AUX,)
            mover = chosen.mover if head and chosen is not None else self.mover
            value = mover.move(value, step.op, step.src, step.dst)
        for name in step.on:
            self.rows[name] = value
