"""The table of a plan: what every boundary does, what it costs, and what else would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..parallel.links import MICROSECOND
from ..planning.plan import Move, Plan, replay
from ..planning.steps import State

_LONGEST_PERIOD = 8
"""Stages of which a repetition consists at most: four layers that differ."""


class Line(NamedTuple):
    """A move of a boundary, one line of the table.

    Args:
        step: with placements before and after.
        rows: of the rank that holds most, after the step.
        group: over which ranks meet; empty for local steps.
        nbytes: that a rank brings to the collective.
        us: microseconds.
    """

    step: str
    rows: int
    group: str
    nbytes: int
    us: float


class Section(NamedTuple):
    """A stage and the lines of its boundary; stages that repeat are one section.

    Args:
        name: of the stage.
        at: numbers of the stages that do this, in the stack.
        runner_up: microseconds that the whole stack costs more with other placements around the
            first of them; None where there are none.
        lines: the boundary's moves.
    """

    name: str
    at: range
    runner_up: float | None
    lines: tuple[Line, ...]


def sections(plan: Plan, runner_ups: Sequence[int | None]) -> Iterator[Section]:
    """A plan's stages; layers that are alike come once.

    Args:
        plan: any plan.
        runner_ups: of its boundaries, from the ``Search`` of its batch and mode.
    """
    for first, period, times in repeats(tuple(zip(plan.stages, plan.edges, strict=True))):
        for index in range(first, first + period):
            extra = runner_ups[index]
            yield Section(
                plan.stages[index].name,
                range(index, index + period * times, period),
                None if extra is None else extra / MICROSECOND,
                tuple(_lines(plan, index)),
            )


def sent_bytes(found: Sequence[Section]) -> int:
    """Bytes that a rank brings to all collectives of a plan."""
    return sum(len(each.at) * line.nbytes for each in found for line in each.lines)


def repeats(items: Sequence[object]) -> Iterator[tuple[int, int, int]]:
    """(first, period, times): items as short runs that come again and again."""
    first = 0
    while first < len(items):
        best, repetitions = 1, 1
        for period in range(1, _LONGEST_PERIOD + 1):
            times = 1
            while items[first : first + period] == items[first + period * times :][:period]:
                times += 1
            if times > 1 and period * times > best * repetitions:
                best, repetitions = period, times
        yield first, best, repetitions
        first += best * repetitions


def _lines(plan: Plan, index: int) -> Iterator[Line]:
    stage, edge, costs = plan.stages[index], plan.edges[index], plan.costs
    state = State(plan.edges[index - 1].stream if index else plan.start)
    left = edge.cost
    steps = replay(costs, stage, state, edge.moves)
    for move, (met, after, price) in zip(edge.moves, steps, strict=True):
        last = move.steps[-1]
        rows = costs.rows(after, last.on)[last.dst.split]
        group, nbytes = (met.group, met.nbytes) if met else ("", 0)
        yield Line(text(plan, move), rows, group, nbytes, price / MICROSECOND)
        state, left = after, left - price
    if stage.kind == "handoff":
        sent = costs.sent(state)
        rows = costs.sizes.rows[state.stream[0].split]
        yield Line(sent.kind, rows, sent.group, sent.nbytes, left / MICROSECOND)


def text(plan: Plan, move: Move) -> str:
    """``add_norm(merge SR, read SR)``."""
    steps = ", ".join(step.text(plan.rules.axes) for step in move.steps)
    return f"{move.provider}({steps})" if move.provider else steps
