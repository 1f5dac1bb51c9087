"""Plans of every kind compute what one rank computes, NaN in padding rows and empty ranks included."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from boundary.stacks import HEADS, LAYERS, stack
from boundary.toy import GRIDS, Toy

from archzoo.parallel.axes import Axes
from archzoo.parallel.links import CostTable, Link
from archzoo.parallel.placement import Term
from archzoo.parallel.rows import Batch
from archzoo.planning.cost import ADD_NORM, Provider
from archzoo.planning.plan import Move, Plan, check
from archzoo.planning.planner import Planner
from archzoo.planning.steps import Stream

FUSED = (
    ADD_NORM,
    Provider("ar_add_norm", ("all_reduce", "merge", "read"), kernels=3, passes=2),
    Provider("post_add_norm", ("post", "merge", "read"), kernels=2, passes=1),
)


def batches(axes: Axes) -> list[tuple[int, ...]]:
    """Ragged with an empty rank, even, one token, none."""
    groups = axes.size(0, axes.attn_depth)
    return [(5, 0, 9, 2)[:groups], (4,) * groups, (0,) * (groups - 1) + (1,), (0,) * groups]


@functools.cache
def planner(axes: Axes, seed: int = 0, fold: bool = True) -> Planner:
    """With random costs unless the seed is 0."""
    rng = random.Random(seed)
    if not seed:
        return Planner(axes, 192, fold=fold, providers=FUSED)
    links = [Link(rng.randrange(1, 10**6), rng.choice((10**9, 10**12, 10**15))) for _ in axes.names]
    by_axis = tuple(zip(axes.names, links, strict=True))
    memory = rng.choice((10**9, 10**12, 10**15))
    table = CostTable(by_axis=by_axis, kernel=rng.randrange(10**6), memory=memory)
    return Planner(axes, 192, table, fold=fold, providers=FUSED)


def moves_of(plan: Plan) -> list[tuple[Move, ...]]:
    return [edge.moves for edge in plan.edges]


def verify(plan: Plan, counts: tuple[int, ...]) -> None:
    """The checker agrees, and all ranks get what the oracle gets."""
    rules, moves = plan.rules, moves_of(plan)
    assert check(plan) == plan
    (start,) = plan.start
    Toy(plan.stages, counts).simulate(rules, moves, start, plan.sliced)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("style", LAYERS)
def test_cheapest_and_naive_plans(grid: str, style: str) -> None:
    axes = GRIDS[grid]
    every = itertools.product(
        HEADS, (False, True), (False, True), (False, True), range(4), ("cheapest", "naive")
    )
    cases = list(every)
    rng = random.Random(f"{grid} {style}")
    for head, capture, handoff, ragged, number, mode in rng.sample(
        cases, 4 if axes.count < 3 else 2
    ):
        counts = batches(axes)[number]
        stages = stack(style, 2, head, capture, handoff)
        seed = rng.randrange(4)
        batch = Batch(max(counts), sum(counts), ragged)
        plan = planner(axes, seed, fold=bool(seed % 2)).plan(stages, batch, mode=mode)
        verify(plan, counts)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("start", ["partial over attn_tp", "partial over tp", "slices"])
def test_what_enters_may_lie_anyhow(grid: str, start: str) -> None:
    axes = GRIDS[grid]
    n, at = axes.count, axes.attn_depth
    term = {
        "partial over attn_tp": Term(at, at),
        "partial over tp": Term(0, 0),
        "slices": Term(n, n),
    }
    for counts, ragged in itertools.product(batches(axes), (False, True)):
        batch = Batch(max(counts), sum(counts), ragged)
        plan = planner(axes).plan(stack("pre", 1), batch, start=term[start])
        assert plan.start == (term[start],)
        rules = plan.rules
        Toy(plan.stages, counts).simulate(rules, moves_of(plan), term[start])


def edges_of(search_from: Planner, stages: tuple, batch: Batch) -> list[tuple[Stream, ...]]:  # type: ignore[type-arg]  # facts
    """For every edge of every stage that can be reached: forced moves up to it."""
    search = search_from.search(batch)
    axes = search_from.axes
    start: Stream = (Term(axes.attn_depth, axes.count),)
    prefixes: dict[Stream, tuple[tuple[Move, ...], ...]] = {start: ()}
    found = []
    for stage in stages:
        after: dict[Stream, tuple[tuple[Move, ...], ...]] = {}
        for stream, prefix in prefixes.items():
            for edge in search.edges(stream, stage):
                found.append((*prefix, edge.moves))
                after.setdefault(edge.stream, (*prefix, edge.moves))
        prefixes = after
    return found


@pytest.mark.parametrize("grid", ["tp2", "tp3", "dp2", "tp4dp2", "deep1"])
@pytest.mark.parametrize("style", LAYERS)
def test_every_reachable_edge_forced(grid: str, style: str) -> None:
    axes, rng = GRIDS[grid], random.Random(f"{grid} {style}")
    most = 14 if axes.count < 3 else 7
    for ragged, fold in ((False, False), (True, True)):
        chief = planner(axes, fold=fold)
        counts = batches(axes)[0]
        stages = stack(style, 2, "tp", capture=axes.count < 3)
        batch = Batch(max(counts), sum(counts), ragged)
        forced = edges_of(chief, stages, batch)
        for prefix in forced if len(forced) <= most else rng.sample(forced, most):
            plan = chief.plan(stages, batch, forced=dict(enumerate(prefix)))
            assert moves_of(plan)[: len(prefix)] == list(prefix)
            verify(plan, counts)
