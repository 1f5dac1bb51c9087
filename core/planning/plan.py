"""Plans as data, and their replay through the automaton: what it accepts is right, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple, get_args

from ..errors import BoundaryError
from ..parallel.placement import Rules, Term
from ..parallel.pricing import Traffic
from .cost import Costs
from .facts import StageFacts, check_stack
from .steps import State, Step, Stream, apply, finish, outputs

VERSION = 1
"""Of the planner: raised when equal inputs give other plans."""

Mode = Literal["cheapest", "naive"]
"""``naive`` pays every debt by an all-reduce where it arises, whatever the batch."""


def check_mode(mode: str) -> None:
    """Refuse a way of choosing that does not exist.

    Raises:
        BoundaryError: none of ``Mode``.
    """
    if mode not in get_args(Mode):
        raise BoundaryError(
            f"plan={mode!r}; plans are chosen as one of {', '.join(get_args(Mode))}"
        )


class Move(NamedTuple):
    """One elementary step, or the steps that a fused provider does at once."""

    provider: str
    steps: tuple[Step, ...]


class Edge(NamedTuple):
    """A stage's boundary, from one stream to the next.

    Args:
        cost: femtoseconds.
        moves: what is done before the stage computes.
        state: in which it computes.
        stream: afterwards.
    """

    cost: int
    moves: tuple[Move, ...]
    state: State
    stream: Stream


class Route:
    """A boundary as a forward runs it; a link of a chain, so that no forward counts stages.

    Args:
        at: index of its stage.
        name: of its stage.
        moves: before the stage computes.
        outputs: how the output of each branch lies.
        stream: what the stream holds afterwards.
        next: what follows; None after the last stage.
    """

    __slots__ = ("at", "moves", "name", "next", "outputs", "stream")

    def __init__(
        self,
        at: int,
        name: str,
        moves: tuple[Move, ...],
        outputs: tuple[Term, ...],
        stream: Stream,
        next: Route | None,
    ) -> None:
        self.at, self.name, self.moves = at, name, moves
        self.outputs, self.stream, self.next = outputs, stream, next


@dataclass(frozen=True)
class Plan:
    """What every boundary of a stack does.

    Args:
        costs: layout, batch size and machine it is made for.
        mode: how it was chosen.
        stages: facts of the whole stack, all pipeline stages.
        start: the stream that enters the first stage.
        edges: one for each stage.
    """

    costs: Costs
    mode: Mode
    stages: tuple[StageFacts, ...]
    start: Stream
    edges: tuple[Edge, ...]

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """What a forward needs of it, for every stage."""
        axes, chain = self.rules.axes, list[Route]()
        for at in reversed(range(len(self.stages))):
            stage, edge = self.stages[at], self.edges[at]
            terms = outputs(axes, stage, edge.state)
            behind = chain[-1] if chain else None
            chain.append(Route(at, stage.name, edge.moves, terms, edge.stream, behind))
        return tuple(reversed(chain))

    @property
    def rules(self) -> Rules:
        """Axes and layout."""
        return self.costs.pricing.rules

    @property
    def moves(self) -> tuple[tuple[Move, ...], ...]:
        """Of every boundary; plans with equal moves do the same."""
        return tuple(edge.moves for edge in self.edges)

    @property
    def cost(self) -> int:
        """Femtoseconds of all boundaries."""
        return sum(edge.cost for edge in self.edges)

    @cached_property
    def sliced(self) -> bool:
        """Whether an attention group's rows are cut somewhere, so that they need padding."""
        moves = {move for edge in set(self.edges) for move in edge.moves}
        terms = {term for move in moves for step in move.steps for term in step[2:]}
        return any(term.split > self.rules.axes.attn_depth for term in terms)


def digest(plans: Sequence[Plan]) -> str:
    """Equal on ranks that will do the same: facts, axes, sizes, costs, providers and moves."""
    return sha256(repr((VERSION, *plans)).encode()).hexdigest()[:16]


def follow(costs: Costs, stage: StageFacts, stream: Stream, moves: tuple[Move, ...]) -> Edge:
    """The edge that makes these moves.

    Raises:
        BoundaryError: one of them is not legal, or the stage cannot compute after them.
    """
    cost, state = 0, State(stream)
    for _, after, price in replay(costs, stage, state, moves):
        cost, state = cost + price, after
    stream = finish(costs.pricing.rules, stage, state)
    return Edge(cost + costs.enter(stage, state), moves, state, stream)


def replay(
    costs: Costs, stage: StageFacts, state: State, moves: tuple[Move, ...]
) -> Iterator[tuple[Traffic | None, State, int]]:
    """For every move: its collective, the state after it, and its cost in femtoseconds.

    Raises:
        BoundaryError: a move is not legal.
    """
    for provider, steps in moves:
        price, met = 0, None
        for step in steps:
            after = apply(costs.pricing.rules, stage, state, step)
            price += costs.step(stage, state, step)
            met, state = costs.traffic(state, step) or met, after
        saved = costs.saved(stage, provider, steps) if provider or len(steps) != 1 else 0
        if saved is None:
            raise BoundaryError(
                f"{stage.name}: no provider {provider!r} does {[step.op for step in steps]} here; "
                f"there are {', '.join(one.name for one in costs.providers)}"
            )
        yield met, state, max(1, price - saved)


def check(plan: Plan, moves: Sequence[tuple[Move, ...]] | None = None) -> Plan:
    """Replay a plan, or other moves in its place; returns the plan that they make.

    Raises:
        BoundaryError: which stage, which step, and why it is not legal.
    """
    check_stack(plan.stages)
    given = plan.moves if moves is None else moves
    if len(given) != len(plan.stages):
        raise BoundaryError(f"moves of {len(given)} boundaries for {len(plan.stages)} stages")
    stream, edges = plan.start, []
    for index, (stage, made) in enumerate(zip(plan.stages, given, strict=True)):
        try:
            edges.append(follow(plan.costs, stage, stream, made))
        except BoundaryError as error:
            error.add_note(f"at stage {index} of {len(plan.stages)}")
            raise
        stream = edges[-1].stream
    replayed = Plan(plan.costs, plan.mode, plan.stages, plan.start, tuple(edges))
    if moves is None and replayed != plan:
        raise BoundaryError("the plan's moves are legal and lead elsewhere than it says")
    return replayed
