"""The residual stream of one forward, on its way along a plan.

A stage's output joins the stream as the term its facts say, perhaps a partial sum. The plan's moves
pay it before anything is read. Values are taken once and cannot be looked at, so summing twice,
forgetting a sum, or reading an unpaid stream cannot be written down. Nothing here is global: two
forwards that take turns stage by stage have a stream each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.compiler import is_compiling

from ..errors import BoundaryError
from ..parallel.moving import RowMover
from ..parallel.placement import Term
from ..planning.facts import AUX, HANDOFF, StageFacts
from ..planning.plan import Route
from ..planning.steps import Stream
from .execute import AddNorm, Crossing, Held, Norm, Selection, Values


class ResidualStream:
    """Hidden rows passed from stage to stage.

    A compiled layer was traced in its place, so the order of stages is checked where Python runs;
    reading a stage's number there would make a compilation for each layer.

    Args:
        route: of the first stage here.
        mover: of this forward's rows.
        selection: rows of this forward that reach the head.
        hidden_states: (T, D), what enters it.
        term: how they lie.

    Attributes:
        aux: captured hidden states by index of the stage that read them: (T, D) each, the rows of
            this attention group.
    """

    __slots__ = ("_ahead", "_inside", "_mover", "_selection", "_values", "aux")

    def __init__(
        self,
        route: Route,
        mover: RowMover,
        selection: Selection,
        hidden_states: Tensor,
        term: Term,
    ) -> None:
        self._ahead: Route | None = route
        self._inside: Route | None = None
        self._mover, self._selection = mover, selection
        self._values = Values()
        self._values.put(term, Held(hidden_states))
        self.aux: dict[int, Tensor] = {}

    @property
    def terms(self) -> Stream:
        """How what it holds lies."""
        return self._values.terms

    def enter(
        self, index: int, stage: StageFacts, norms: Mapping[str, AddNorm], where: str
    ) -> dict[str, Tensor]:
        """Make the moves before a stage; the rows of each of its branches.

        Raises:
            BoundaryError: it is not this stage's turn.
        """
        self._inside, rows = self._cross(index, stage, norms, where)
        return rows

    def leave(
        self, index: int, outputs: Sequence[Tensor], posts: Sequence[Norm | None], where: str
    ) -> None:
        """Record what a stage's branches gave, in their order.

        Raises:
            BoundaryError: the stage was not entered, or another number of outputs than branches.
        """
        route, self._inside = self._inside, None
        if route is None or not (is_compiling() or route.at == index):
            raise BoundaryError(
                f"{where}: finish() without prepare(); every stage calls both, once in a forward"
            )
        if len(outputs) != len(route.outputs):
            raise BoundaryError(
                f"{where}: {len(outputs)} outputs for {len(route.outputs)} branches"
            )
        for term, output, post in zip(route.outputs, outputs, posts, strict=True):
            self._values.put(term, Held(output, post))

    def read(
        self, index: int, stage: StageFacts, norms: Mapping[str, AddNorm], where: str
    ) -> Tensor:
        """The rows of the head, which ends the stream.

        Raises:
            BoundaryError: a stage before it has not run.
        """
        (branch,) = stage.branches
        return self._cross(index, stage, norms, where)[1][branch.name]

    def settle(self, index: int) -> Tensor:
        """The one complete term that is handed to the next pipeline stage.

        Raises:
            BoundaryError: a stage before it has not run.
        """
        route, _ = self._cross(index, HANDOFF, {}, "the hand-off")
        (term,) = route.stream
        return self._values.take(term).value

    def _cross(
        self, index: int, stage: StageFacts, norms: Mapping[str, AddNorm], where: str
    ) -> tuple[Route, dict[str, Tensor]]:
        route = self._ahead
        if self._inside is not None:
            raise BoundaryError(
                f"{where}: prepare() while the output of stage {self._inside.at} "
                f"({self._inside.name}) is outstanding; every stage calls finish() after it has "
                "computed"
            )
        if route is None or not (is_compiling() or route.at == index):
            before = "at its end" if route is None else f"before stage {route.at}"
            raise BoundaryError(
                f"{where} is stage {index} of the stack, the stream is {before}; stages run in the "
                "order of the stack, each once in a forward"
            )
        self._ahead = route.next
        crossing = Crossing(stage, self._values, self._mover, norms, self._selection)
        rows = crossing.run(route.moves)
        if stage.capture:
            self.aux[index] = rows.pop(AUX)
        return route, rows
