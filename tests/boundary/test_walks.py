"""Whatever the automaton accepts is right: random walks, mutated plans, every step executed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from boundary.stacks import LAYERS, stack
from boundary.test_plans import batches, planner
from boundary.toy import GRIDS, D, Toy

from archzoo.errors import BoundaryError
from archzoo.parallel.placement import OPS, Rules, Term, changes
from archzoo.parallel.rows import Batch
from archzoo.planning.facts import StageFacts
from archzoo.planning.plan import Move, check
from archzoo.planning.planner import Planner
from archzoo.planning.steps import State, Step, Stream, entered, finish, steps_from

Moves = list[tuple[Move, ...]]


def walk(
    rules: Rules, stages: tuple[StageFacts, ...], start: Stream, rng: random.Random
) -> Moves | None:
    """A random legal way through the stack; None where it ran into a corner."""
    moves: Moves = []
    for stage in stages:
        state, made = State(start), []
        for _ in range(40):
            if entered(rules, stage, state) is not None and rng.random() < 0.5:
                break
            legal = list(steps_from(rules, stage, state))
            if not legal:
                return None
            op = rng.choice(sorted({step.op for step, _ in legal}))
            step, state = rng.choice([each for each in legal if each[0].op == op])
            made.append(Move("", (step,)))
        if entered(rules, stage, state) is None:
            return None
        start = finish(rules, stage, state)
        moves.append(tuple(made))
    return moves


@pytest.mark.parametrize("grid", ["tp2", "dp2", "tp4dp2", "deep1", "deep2"])
def test_random_walks(grid: str) -> None:
    axes, rng, taken = GRIDS[grid], random.Random(grid), set()
    for number in range(60):
        rules = Rules(axes, ragged=rng.random() < 0.5, fold=rng.random() < 0.7)
        capture, handoff = rng.random() < 0.3, rng.random() < 0.3
        head = rng.choice(("tp", "dp", "all_rows"))
        stages = stack(rng.choice(sorted(LAYERS)), 1, head, capture, handoff)
        start = Term(axes.attn_depth, axes.count)
        moves = walk(rules, stages, (start,), rng)
        if moves is not None:
            counts = rng.choice(batches(axes))
            toy = Toy(stages, counts, number)
            log = toy.simulate(rules, moves, start)
            costs = Planner(axes, 8 * D, fold=rules.fold).search(Batch(9, 16, rules.ragged)).costs
            toy.compare(log, costs, (start,), moves, sliced=True)
            taken.update(step.op for made in moves for move in made for step in move.steps)
    assert taken == set(OPS)


@pytest.mark.parametrize("grid", ["tp2", "dp2", "tp4dp2", "deep1", "deep2"])
@pytest.mark.parametrize("ragged", [False, True])
def test_each_change_of_placement_alone(grid: str, ragged: bool) -> None:
    """Every (op, src, dst) on the stream there is, executed at least once from a value like src."""
    axes = GRIDS[grid]
    n = axes.count
    rules = Rules(axes, ragged, fold=True)
    places = [Term(s, d) for s in range(n + 1) for d in range(s, n + 1)]
    stages = (stack("pre", 1, "all_rows")[-1],)
    home = planner(axes).search(Batch(9, 16, ragged))
    for src in places:
        for op, dst in changes(rules, src):
            if op in ("merge", "read", "select"):
                continue
            first = Move("", (Step(op, (), src, dst),))
            ways = home.edges((dst,), stages[0])
            moves = [(first, *min(ways).moves)]
            for counts in batches(axes)[:2]:
                Toy(stages, counts).simulate(rules, moves, src)


def mutants(moves: Moves, rules: Rules, rng: random.Random) -> list[Moves]:
    """The same list with one move deleted, doubled, swapped, renamed, aimed elsewhere or put off."""
    flat = [(i, j) for i, made in enumerate(moves) for j in range(len(made))]
    found: list[Moves] = []
    n = rules.axes.count
    for i, j in flat:
        made, move = moves[i], moves[i][j]
        at = rng.randrange(len(move.steps))
        step = move.steps[at]
        other = Term(*sorted((rng.randint(0, n), rng.randint(0, n))), step.dst.post)

        def swapped_step(new: Step, move: Move = move, at: int = at) -> Move:
            return move._replace(steps=(*move.steps[:at], new, *move.steps[at + 1 :]))

        after = made[j + 1 : j + 2]
        variants = [
            (*made[:j], *made[j + 1 :]),
            (*made[: j + 1], *made[j:]),
            (*made[:j], *after, move, *made[j + 2 :]),
            (*made[:j], swapped_step(step._replace(op=rng.choice((*OPS, "x")))), *made[j + 1 :]),
            (*made[:j], swapped_step(step._replace(dst=other)), *made[j + 1 :]),
            (*made[:j], swapped_step(step._replace(src=other)), *made[j + 1 :]),
            (*made[:j], swapped_step(step._replace(on=("mlp",))), *made[j + 1 :]),
            (*made[:j], move._replace(provider="ar_add_norm"), *made[j + 1 :]),
            (*made[:j], move._replace(steps=move.steps[:-1]), *made[j + 1 :]),
        ]
        found += [[*moves[:i], variant, *moves[i + 1 :]] for variant in variants]
        if i + 1 < len(moves):
            kept = (*made[:j], *made[j + 1 :])
            found.append([*moves[:i], kept, (move, *moves[i + 1]), *moves[i + 2 :]])
    return [moves for moves in found if moves]


@pytest.mark.parametrize("grid", ["tp2", "dp2", "tp4dp2", "deep1"])
def test_mutated_plans_are_rejected_or_right(grid: str) -> None:
    axes, rng = GRIDS[grid], random.Random(grid)
    rejected = accepted = 0
    counts = batches(axes)[0]
    for style in LAYERS:
        ragged = rng.random() < 0.5
        batch = Batch(max(counts), sum(counts), ragged)
        stages = stack(style, 1, rng.choice(("tp", "dp")), capture=rng.random() < 0.5)
        plan = planner(axes, seed=rng.randrange(4)).plan(stages, batch)
        original = list(plan.moves)
        for moves in mutants(original, plan.rules, rng):
            if moves == original:
                continue
            try:
                other = check(plan, moves)
            except BoundaryError:
                rejected += 1
            else:
                accepted += 1
                (start,) = plan.start
                Toy(stages, counts).simulate(plan.rules, other.moves, start)
    assert rejected > 15 * accepted and rejected > 300


def test_a_plan_that_says_something_else_than_it_does_is_rejected() -> None:
    plan = planner(GRIDS["tp4dp2"]).plan(stack("pre", 1), Batch(4, 8))
    assert check(plan) == plan
    for field, value in (("cost", 1), ("stream", ()), ("state", State(()))):
        edges = (plan.edges[0]._replace(**{field: value}), *plan.edges[1:])
        with pytest.raises(BoundaryError, match="lead elsewhere"):
            check(replace(plan, edges=edges))
    with pytest.raises(BoundaryError, match="moves of 2 boundaries for 3 stages"):
        check(plan, plan.moves[:2])
