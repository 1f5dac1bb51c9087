"""LayerStack: the boundaries of a decoder, from their facts to the plan that they follow.

::

    with LayerStack(facts of every layer, head, ctx=ctx, hidden_size=D) as stack:
        for layer_id in stack.here:
            layer = Layer(...)                          # makes its boundaries, unbound
            stack.append_stages(layer_id, layer.boundaries)
    stream = stack.begin(hidden_states, rows)           # one forward

Facts of layers on other pipeline stages are enough: every stage plans the whole stack and runs its
own part, so both ends of a hand-off know how rows lie without asking each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from types import TracebackType

from torch import Tensor

from ..boundary.execute import Selection
from ..boundary.stage import Place, StageBoundary
from ..boundary.stream import ResidualStream
from ..context import BuildContext
from ..errors import BoundaryError
from ..forward import ForwardBatch
from ..parallel.axes import Axes
from ..parallel.links import CostTable, default_costs
from ..parallel.moving import RowMover
from ..parallel.placement import Term
from ..parallel.rows import GroupRows, RowMap
from ..planning.buckets import PlanBook
from ..planning.facts import HANDOFF, StageFacts, check_stack
from ..planning.plan import Plan
from ..planning.planner import Planner
from .rows import group_rows


class LayerStack:
    """All stages of a decoder; the boundaries of those that are here.

    Args:
        layers: by global layer id, the facts of the layer's stages.
        head: facts of the final norm and head.
        ctx: topology, groups and dtype; how plans are chosen.
        hidden_size: features of a row.

    Raises:
        BoundaryError: facts that cannot be planned, or that capture by themselves.

    Attributes:
        here: global ids of the layers of this pipeline stage.
        book: plans, by rows.
        tp_rank: place of this rank in its pipeline stage.
    """

    def __init__(
        self,
        layers: Sequence[tuple[StageFacts, ...]],
        head: StageFacts,
        *,
        ctx: BuildContext,
        hidden_size: int,
    ) -> None:
        self._ctx, self._layers, self._head = ctx, tuple(layers), head
        parts = ctx.pipeline_parts(len(layers))
        self.here = ctx.pipeline_stage(len(layers)).layers
        self._part = parts.index(self.here)
        stages: list[StageFacts] = []
        self._first_of: list[int] = []
        self._hand_offs: list[int] = []
        for part in parts:
            for layer_id in part:
                self._first_of.append(len(stages))
                stages += layers[layer_id]
            self._hand_offs.append(len(stages))
            stages.append(HANDOFF if part is not parts[-1] else head)
        if any(stage.capture for stage in stages):
            raise BoundaryError(
                "stage_facts declare capture=True; leave it out and call capture() for the states "
                "that are wanted"
            )
        check_stack(stages)
        self._boundaries: dict[int, StageBoundary] = {}
        self._closed = False
        self._captured: dict[int, int] = {}
        self.tp_rank = ctx.group("tp").rank
        self.book = PlanBook(_planner(ctx, hidden_size), stages, mode=ctx.plan)

    def append_stages(self, layer_id: int, boundaries: Sequence[StageBoundary]) -> None:
        """Take the boundaries of a layer.

        Raises:
            BoundaryError: the stack is closed; the layer is not of this pipeline stage or was
                appended before; its boundaries differ from its facts, or sum over other ranks.
        """
        where = f"layer {layer_id}"
        if layer_id not in self.here:
            raise BoundaryError(
                f"{where} is appended to a pipeline stage that holds layers {self.here.start} to "
                f"{self.here.stop - 1}; build only those"
            )
        self._append(self._first_of[layer_id], boundaries, self._layers[layer_id], where)

    def append_head(self, boundary: StageBoundary) -> None:
        """Take the boundary of the head; last pipeline stage only.

        Raises:
            BoundaryError: as ``append_stages``.
        """
        if not self._is_last:
            raise BoundaryError(f"{boundary.where} is appended before the last pipeline stage")
        self._append(self._hand_offs[-1], [boundary], (self._head,), "the head")

    def close(self) -> None:
        """Give every boundary its place.

        Raises:
            BoundaryError: a stage of this pipeline stage has no boundary.
        """
        first, end = self._entry, self._hand_offs[self._part] + self._is_last
        missing = [index for index in range(first, end) if index not in self._boundaries]
        if missing:
            names = [self.book.stages[index].name for index in missing]
            raise BoundaryError(
                f"stages {missing} ({', '.join(names)}) have no boundary; append those of every "
                "layer and of the head before the stack is closed"
            )
        self._closed = True
        self._bind()

    def __enter__(self) -> LayerStack:
        """Open until the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, unless building failed."""
        if kind is None:
            self.close()

    def capture(self, indices: Sequence[int]) -> None:
        """Hidden states that forwards give beside their output.

        Args:
            indices: 0 is the embedding, i the output of layer i - 1, the number of layers the last
                output before the final norm. In the order in which they are wanted.

        Raises:
            BoundaryError: an index that no layer has, or one twice.
        """
        count = len(self._layers)
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= count:
                raise BoundaryError(
                    f"aux hidden state {index!r}: indices are 0 (embedding) to {count} (output of "
                    "the last layer)"
                )
        if len(set(indices)) < len(indices):
            raise BoundaryError(f"aux hidden states {list(indices)} name one twice; give each once")
        places = [*self._first_of, self._hand_offs[-1]]
        self._captured = {places[index]: index for index in indices}
        stages = [
            replace(stage, capture=at in self._captured)
            for at, stage in enumerate(self.book.stages)
        ]
        self.book = self.book.of_stages(stages)
        if self._closed:
            self._bind()

    def rows_of(self, batch: ForwardBatch, num_rows: int, picked: Tensor | None) -> GroupRows:
        """Rows of every attention group in a forward.

        Args:
            batch: the facts of the forward.
            num_rows: rows here, padding included.
            picked: rows here that leave the model; None for all real ones.

        Raises:
            InputError: the batch does not say, or contradicts the rows here.
        """
        group = self._ctx.group("attn_dp")
        return group_rows(batch, num_rows, picked, group.size, group.rank)

    def begin(
        self, hidden_states: Tensor, rows: GroupRows, picked: Tensor | None = None
    ) -> ResidualStream:
        """The stream of one forward, before the first stage here.

        Args:
            hidden_states: (T, D) embeddings of this attention group's rows; past the first
                pipeline stage what ``settle`` gave on the stage before.
            rows: of every attention group.
            picked: (S,) int64, which of this group's rows leave the model; None for all real ones.
        """
        plan = self.book.of_rows(rows)
        mover = RowMover(plan.rules, self._map(rows), self.tp_rank, self._ctx.group)
        selection = Selection(replace(mover, rows=self.selected(rows)), picked)
        term = self._entry_term(plan)
        route = plan.routes[self._entry]
        return ResidualStream(route, mover, selection, hidden_states, term)

    def selected(self, rows: GroupRows) -> RowMap:
        """Where the rows that leave the model lie."""
        return RowMap.of(self.book.axes, rows.selected, ragged=rows.ragged)

    def own(self, rows: GroupRows) -> slice:
        """Which of the head's rows are those of this attention group."""
        axes, selected = self.book.axes, self.selected(rows)
        start = 0
        if "attn" not in self._head.branches[0].rows:
            start = selected.span(self.tp_rank, axes.attn_depth).start
        return slice(start, start + rows.selected[self.group_index])

    def own_rows(self, rows: GroupRows) -> int:
        """Rows of this attention group, padding included."""
        return rows.held[self.group_index]

    @property
    def boundaries(self) -> tuple[StageBoundary, ...]:
        """Those of this pipeline stage, in order of their stages."""
        return tuple(self._boundaries[index] for index in sorted(self._boundaries))

    @property
    def captured_before(self) -> tuple[int, ...]:
        """Indices that earlier pipeline stages capture."""
        return tuple(index for at, index in self._captured.items() if at < self._entry)

    @property
    def group_index(self) -> int:
        """Number of this rank's attention group."""
        return self._ctx.group("attn_dp").rank

    def entry_rows(self, rows: GroupRows) -> int:
        """Rows that the pipeline stage before hands to this rank."""
        term = self._entry_term(self.book.of_rows(rows))
        return len(self._map(rows).span(self.tp_rank, term.split))

    def settle(self, stream: ResidualStream) -> Tensor:
        """What this rank hands to the next pipeline stage."""
        return stream.settle(self._hand_offs[self._part])

    def captured(self, stream: ResidualStream) -> dict[int, Tensor]:
        """Hidden states that a forward has captured here, by their index."""
        return {self._captured[at]: rows for at, rows in stream.aux.items()}

    @property
    def _is_last(self) -> bool:
        return self._part == len(self._hand_offs) - 1

    @property
    def _entry(self) -> int:
        """Index of the first stage here."""
        return self._hand_offs[self._part - 1] + 1 if self._part else 0

    def _entry_term(self, plan: Plan) -> Term:
        if not self._part:
            return self.book.start
        (term,) = plan.routes[self._entry - 1].stream
        return term

    def _map(self, rows: GroupRows) -> RowMap:
        return RowMap(self.book.axes, rows.counts, rows.held)

    def _append(
        self,
        first: int,
        boundaries: Sequence[StageBoundary],
        facts: tuple[StageFacts, ...],
        where: str,
    ) -> None:
        if self._closed:
            raise BoundaryError(f"{where} is appended to a closed stack; append before it closes")
        if first in self._boundaries:
            raise BoundaryError(f"{where} is appended twice; append each layer once")
        built = tuple(boundary.facts for boundary in boundaries)
        if built != facts:
            raise BoundaryError(
                f"{where} was built with stages {_told(built)}, its stage_facts say {_told(facts)}; "
                "make them agree, for other pipeline stages plan by the facts alone"
            )
        for index, boundary in enumerate(boundaries, start=first):
            boundary.check_groups(self._ctx.group)
            self._boundaries[index] = boundary

    def _bind(self) -> None:
        for index, boundary in self._boundaries.items():
            boundary.bind(Place(index, self.book.stages[index]))


def _told(facts: tuple[StageFacts, ...]) -> str:
    return "; ".join(map(repr, facts)) or "none"


def _planner(ctx: BuildContext, hidden_size: int) -> Planner:
    """The planner for this rank's groups, rows and machine; equal on every rank."""
    costs = ctx.costs or default_costs(ctx.device.type)
    width, fold = hidden_size * ctx.dtype.itemsize, ctx.dtype.itemsize >= 4
    return _shared_planner(Axes.of_groups(ctx.groups), width, costs, fold)


@lru_cache(maxsize=16)  # ranks simulated in one process need not search alike
def _shared_planner(axes: Axes, width: int, costs: CostTable, fold: bool) -> Planner:
    return Planner(axes, width, costs, fold=fold)
