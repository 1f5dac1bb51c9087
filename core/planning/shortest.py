"""Inside one boundary: the cheapest moves from a stream to every stream its stage can leave."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..parallel.axes import Axes
from .cost import Costs
from .facts import StageFacts
from .plan import Edge, Mode, Move
from .steps import State, Step, Stream, entered, steps_from

_Way = tuple[tuple[Step, ...], State, int]
"""Steps, the state they lead to, and what they cost."""


class Boundary:
    """All edges of stages with the same facts, for one batch size (Dijkstra over micro-states)."""

    def __init__(self, costs: Costs, stage: StageFacts, mode: Mode) -> None:
        self._costs, self._rules, self._stage = costs, costs.pricing.rules, stage
        self._mode: Mode = mode
        self._edges: dict[Stream, tuple[Edge, ...]] = {}
        self._steps: dict[State, list[tuple[Step, State, int]]] = {}

    def edges(self, stream: Stream) -> tuple[Edge, ...]:
        """The cheapest edge to every stream that can follow, sorted."""
        if stream not in self._edges:
            self._edges[stream] = self._shortest(stream)
        return self._edges[stream]

    def _shortest(self, stream: Stream) -> tuple[Edge, ...]:
        found: dict[Stream, Edge] = {}
        heap: list[tuple[int, tuple[Move, ...], State]] = [(0, (), State(stream))]
        done: set[State] = set()
        while heap:
            cost, moves, state = heapq.heappop(heap)
            if state in done:
                continue
            done.add(state)
            after = entered(self._rules, self._stage, state)
            if after is not None:
                total = cost + self._costs.enter(self._stage, state)
                edge = Edge(total, moves, state, after)
                found[after] = min(edge, found.get(after, edge))
            for move, target, price in self._moves(state):
                if target not in done:
                    heapq.heappush(heap, (cost + price, (*moves, move), target))
        return tuple(found[after] for after in sorted(found))

    def _moves(self, state: State) -> Iterator[tuple[Move, State, int]]:
        for step, after, price in self._from(state):
            yield Move("", (step,)), after, price
        for provider in self._costs.providers:
            for steps, after, price in self._runs(state, provider.twin):
                saved = self._costs.saved(self._stage, provider.name, steps)
                if saved is not None:
                    yield Move(provider.name, steps), after, max(1, price - saved)

    def _runs(self, state: State, twin: tuple[str, ...]) -> list[_Way]:
        """Legal runs of steps with these ops, each from where the one before ended."""
        runs: list[_Way] = [((), state, 0)]
        for op in twin:
            runs = [
                ((*steps, step), after, cost + price)
                for steps, before, cost in runs
                for step, after, price in self._from(before)
                if step.op == op and (not steps or step.src == steps[-1].dst)
            ]
        return runs

    def _from(self, state: State) -> list[tuple[Step, State, int]]:
        if state not in self._steps:
            self._steps[state] = [
                (step, after, self._costs.step(self._stage, state, step))
                for step, after in steps_from(self._rules, self._stage, state)
                if self._mode == "cheapest" or _is_naive(self._rules.axes, step)
            ]
        return self._steps[state]


def _is_naive(axes: Axes, step: Step) -> bool:
    """Steps of the reproducible mode: debts are paid in place, the residual stays where it is."""
    match step.op:
        case "slice":
            return bool(step.on) or step.dst.split <= axes.attn_depth
        case "all_gather":
            return bool(step.on) or step.dst.split == axes.attn_depth
    return step.op not in ("spread", "reduce_scatter")
