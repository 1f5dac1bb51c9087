"""The planner: the cheapest way through a whole stack of stages. A pure function, equal on all ranks.

Inside a boundary: the shortest path from a stream to every stream its stage can leave (Dijkstra,
``shortest``). Over the stack: the best sequence of streams (Viterbi, here). Both are remembered, so
a layer like the one before it costs a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from ..errors import BoundaryError
from ..parallel.axes import Axes
from ..parallel.links import CostTable
from ..parallel.placement import Rules, Term
from ..parallel.pricing import Pricing
from ..parallel.rows import Batch
from .cost import ADD_NORM, Costs, Provider
from .facts import StageFacts, check_stack
from .plan import Edge, Mode, Move, Plan, check_mode, follow
from .shortest import Boundary
from .steps import State, Stream

Forced = Mapping[int, tuple[Move, ...]]
"""By stage, the moves its boundary must make, whatever they cost."""


class Planner:
    """Plans for one pipeline-stage shape and machine; keeps what it found.

    Args:
        axes: of a pipeline stage.
        width: bytes of one row.
        table: costs of the machine; the same on every rank.
        fold: see Rules; only where rows are float32 or wider.
        providers: fused operations that can be used.
    """

    def __init__(
        self,
        axes: Axes,
        width: int,
        table: CostTable | None = None,
        *,
        fold: bool = False,
        providers: tuple[Provider, ...] = (ADD_NORM,),
    ) -> None:
        self.axes, self.width, self.fold, self.providers = axes, width, fold, providers
        self.table = table or CostTable()
        self._searches: dict[tuple[Batch, Mode], Search] = {}

    def plan(
        self,
        stages: Sequence[StageFacts],
        batch: Batch,
        *,
        start: Term | None = None,
        mode: Mode = "cheapest",
        forced: Forced | None = None,
    ) -> Plan:
        """Plan a whole stack.

        Args:
            stages: of all pipeline stages, with HANDOFF between them.
            batch: its size, from the counts of all attention groups.
            start: how the value that enters lies; complete attention rows unless given.
            mode: see Mode.
            forced: see Forced.

        Raises:
            BoundaryError: a stage cannot be entered.
        """
        check_stack(stages)
        first = start or Term(self.axes.attn_depth, self.axes.count)
        return self.search(batch, mode).plan(tuple(stages), (first,), forced or {})

    def search(self, batch: Batch, mode: Mode = "cheapest") -> Search:
        """The search for batches of this size.

        Raises:
            BoundaryError: no such mode.
        """
        if (batch, mode) not in self._searches:
            check_mode(mode)
            rules = Rules(self.axes, batch.ragged, self.fold, batch.cuts)
            pricing = Pricing(rules, self.table, self.width)
            costs = Costs(pricing, batch.sizes(self.axes), self.providers)
            self._searches[batch, mode] = Search(costs, mode)
        return self._searches[batch, mode]


_Level = tuple[tuple[Stream, int], ...]
"""Streams that can stand between two stages, sorted, with their cost above the cheapest."""


class _Front(NamedTuple):
    """After a stage: by stream, the stream before and the edge between."""

    level: _Level
    came: Mapping[Stream, tuple[Stream, Edge]]
    base: int


class Search:
    """Cheapest plans for one batch size."""

    def __init__(self, costs: Costs, mode: Mode) -> None:
        self.costs = costs
        self._mode: Mode = mode
        self._boundaries: dict[StageFacts, Boundary] = {}
        self._fronts: dict[tuple[_Level, StageFacts], _Front] = {}

    def edges(self, stream: Stream, stage: StageFacts) -> tuple[Edge, ...]:
        """The cheapest edge from a stream to every stream the stage can leave."""
        if stage not in self._boundaries:
            self._boundaries[stage] = Boundary(self.costs, stage, self._mode)
        return self._boundaries[stage].edges(stream)

    def plan(self, stages: tuple[StageFacts, ...], start: Stream, forced: Forced) -> Plan:
        """As Planner.plan."""
        way, edges = self._way(stages, start, forced), []
        stream = min(way[-1].level, key=lambda one: one[1])[0]
        for front in reversed(way[1:]):
            stream, edge = front.came[stream]
            edges.append(edge)
        return Plan(self.costs, self._mode, stages, start, tuple(reversed(edges)))

    def runner_ups(self, plan: Plan) -> tuple[int | None, ...]:
        """For every boundary, femtoseconds that the whole stack costs more with other streams
        around it; None where there are none."""
        way = self._way(plan.stages, plan.start, {})
        spent = list(accumulate(front.base for front in way))
        taken = (plan.start, *(edge.stream for edge in plan.edges))
        rest = {stream: 0 for stream, _ in way[-1].level}
        found: list[int | None] = []
        for index in reversed(range(len(plan.stages))):
            others: list[int] = []
            ahead: dict[Stream, int] = {}
            for stream, cost in way[index].level:
                for edge in self.edges(stream, plan.stages[index]):
                    to_end = edge.cost + rest[edge.stream]
                    ahead[stream] = min(to_end, ahead.get(stream, to_end))
                    if (stream, edge.stream) != taken[index : index + 2]:
                        others.append(spent[index] + cost + to_end)
            found.append(min(others) - plan.cost if others else None)
            rest = ahead
        return tuple(reversed(found))

    def _way(self, stages: tuple[StageFacts, ...], start: Stream, forced: Forced) -> list[_Front]:
        """Before the first stage and after each."""
        way = [_Front(((start, 0),), {}, 0)]
        for index, stage in enumerate(stages):
            level = way[-1].level
            if index in forced:
                front = self._front(level, stage, forced[index])
            elif (level, stage) in self._fronts:
                front = self._fronts[level, stage]
            else:
                front = self._fronts[level, stage] = self._front(level, stage)
            if not front.level:
                raise BoundaryError(self._no_way(level, stage, index))
            way.append(front)
        return way

    def _front(
        self, level: _Level, stage: StageFacts, forced: tuple[Move, ...] | None = None
    ) -> _Front:
        best: dict[Stream, int] = {}
        came: dict[Stream, tuple[Stream, Edge]] = {}
        for stream, cost in level:
            for edge in self._ways(stream, stage, forced):
                total = cost + edge.cost
                if total < best.get(edge.stream, total + 1):
                    best[edge.stream], came[edge.stream] = total, (stream, edge)
        base = min(best.values(), default=0)
        return _Front(tuple((stream, best[stream] - base) for stream in sorted(best)), came, base)

    def _ways(
        self, stream: Stream, stage: StageFacts, forced: tuple[Move, ...] | None
    ) -> tuple[Edge, ...]:
        if forced is None:
            return self.edges(stream, stage)
        with suppress(BoundaryError):
            return (follow(self.costs, stage, stream, forced),)
        return ()

    def _no_way(self, level: _Level, stage: StageFacts, index: int) -> str:
        axes = self.costs.pricing.rules.axes
        streams = ", ".join(State(stream).text(axes) for stream, _ in level)
        return (
            f"stage {index} ({stage.name}) cannot be entered from {streams} over axes "
            f"{dict(zip(axes.names, axes.sizes, strict=True))}, mode {self._mode!r}: no legal steps "
            "lead to its rows and group; change its facts, or the moves forced there"
        )
