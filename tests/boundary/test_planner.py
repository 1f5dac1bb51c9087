"""The planner finds the cheapest plan there is, says what it costs, and says the same everywhere."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from boundary.stacks import LAYERS, stack
from boundary.test_plans import batches, moves_of, planner
from boundary.toy import GRIDS, Toy, groups_of, traffic

import archzoo.planning.planner as planner_module
from archzoo.errors import BoundaryError
from archzoo.parallel import Groups, Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.links import LINKS, CostTable
from archzoo.parallel.placement import Term
from archzoo.parallel.rows import Batch
from archzoo.planning.buckets import PlanBook
from archzoo.planning.cost import ADD_NORM, Costs, Provider
from archzoo.planning.facts import StageFacts, declare_attn, declare_ffn, declare_head, declare_own
from archzoo.planning.plan import Move, Plan, digest, follow, replay
from archzoo.planning.planner import Planner
from archzoo.planning.steps import State, Step, Stream, entered, steps_from

WIDTH = 2 * 4096


def costs_of_every_edge(
    costs: Costs, stage: StageFacts, stream: Stream
) -> Iterator[tuple[Stream, int]]:
    """By relaxation over all states that legal steps lead to, shortcuts included."""
    ways = {State(stream): list(steps_from(costs.pricing.rules, stage, State(stream)))}
    todo = [State(stream)]
    while todo:
        for _, after in ways[todo.pop()]:
            if after not in ways:
                ways[after] = list(steps_from(costs.pricing.rules, stage, after))
                todo.append(after)
    cost = {State(stream): 0}
    while True:
        before = dict(cost)
        for state in [*cost]:
            for step, after in ways[state]:
                price = costs.step(stage, state, step)
                cost[after] = min(cost.get(after, 10**18), cost[state] + price)
                for last, end in ways[after]:
                    saved = costs.saved(stage, "add_norm", (step, last))
                    if saved is not None:
                        both = max(1, price + costs.step(stage, after, last) - saved)
                        cost[end] = min(cost.get(end, 10**18), cost[state] + both)
        if cost == before:
            break
    for state, spent in cost.items():
        out = entered(costs.pricing.rules, stage, state)
        if out is not None:
            yield out, spent + costs.enter(stage, state)


def brute_force(costs: Costs, stages: tuple[StageFacts, ...], start: Stream) -> int:
    """The cheapest of all sequences of edges, one after the other."""
    known: dict[tuple[StageFacts, Stream], list[tuple[Stream, int]]] = {}

    def rest(index: int, stream: Stream) -> int:
        if index == len(stages):
            return 0
        key = stages[index], stream
        if key not in known:
            known[key] = list(costs_of_every_edge(costs, *key))
        return min((cost + rest(index + 1, after) for after, cost in known[key]), default=10**18)

    return rest(0, start)


@pytest.mark.parametrize("grid", ["tp2", "dp2", "tp4dp2"])
@pytest.mark.parametrize("style", ["pre", "sandwich", "bert", "replicated", "own"])
def test_equal_to_brute_force(grid: str, style: str) -> None:
    axes = GRIDS[grid]
    stages = (*LAYERS[style], declare_attn(capture=True), declare_head())
    for rows, ragged in ((1, False), (4096, True)):
        chief = Planner(axes, WIDTH, CostTable(by_axis=(("attn_dp", LINKS["pcie"]),)))
        plan = chief.plan(stages, Batch(rows, 2 * rows, ragged))
        assert plan.cost == brute_force(plan.costs, stages, plan.start)


LLAMA = (*(declare_attn(), declare_ffn()) * 4, declare_head())


@pytest.mark.parametrize(
    ("axes", "batch", "ops"),
    [
        (GRIDS["tp2"], Batch(16384, 16384), ("reduce_scatter", "all_gather")),
        (Axes.of(Topology(tp=8)), Batch(16384, 16384), ("reduce_scatter", "all_gather")),
        (GRIDS["tp4dp2"], Batch(4, 8), ("spread", "all_reduce", "slice")),
        (GRIDS["tp8dp4"], Batch(1, 4), ("spread", "all_reduce", "slice")),
    ],
    ids=["tp 2 prefill", "tp 8 prefill", "tp 4 dp 2 decode", "tp 8 dp 4 decode"],
)
def test_strictly_cheaper_than_naive(axes: Axes, batch: Batch, ops: tuple[str, ...]) -> None:
    """Sequence parallelism in prefill; in decode with attention DP rows stay gathered."""
    chief = Planner(axes, WIDTH)
    plan, naive = chief.plan(LLAMA, batch), chief.plan(LLAMA, batch, mode="naive")
    assert plan.cost < naive.cost
    middle = {step.op for edge in plan.edges[3:7] for move in edge.moves for step in move.steps}
    assert set(ops) <= middle


def test_sequence_parallel_prefill_is_found() -> None:
    plan = Planner(Axes.of(Topology(tp=8)), WIDTH).plan(LLAMA, Batch(16384, 16384))
    partial, rows, part = Term(0, 0), Term(0, 1), Term(1, 1)
    for index, name in ((3, "mlp"), (4, "attn"), (5, "mlp")):
        assert plan.edges[index].moves == (
            Move("", (Step("reduce_scatter", (), partial, part),)),
            Move("add_norm", (Step("merge", (), part, part), Step("read", (), part, part))),
            Move("", (Step("all_gather", (name,), part, rows),)),
        )


@pytest.mark.parametrize("style", LAYERS)
@pytest.mark.parametrize("grid", ["tp2", "dp2", "tp4dp2", "deep1"])
def test_naive_is_one_plan_for_every_batch(grid: str, style: str) -> None:
    book = PlanBook(Planner(GRIDS[grid], WIDTH), stack(style), mode="naive")
    groups = GRIDS[grid].size(0, GRIDS[grid].attn_depth)
    sizes = [(2**power,) * groups for power in range(16)] + [
        (2**power, *[1] * (groups - 1)) for power in range(16)
    ]
    assert len({book.plan(counts).moves for counts in sizes}) == 1


@pytest.mark.parametrize("tp", [2, 3, 8])
def test_naive_has_two_all_reduces_for_each_layer(tp: int) -> None:
    plan = Planner(Axes.of(Topology(tp=tp)), WIDTH).plan(LLAMA, Batch(16384, 16384), mode="naive")
    assert Counter(
        kind for kind, _, _ in traffic(plan.costs, plan.stages, plan.start, plan.moves)
    ) == {"all_reduce": 8}


@pytest.mark.parametrize("grid", ["tp2", "tp3", "dp2", "tp4dp2", "deep1"])
@pytest.mark.parametrize("style", ["pre", "sandwich", "parallel", "experts"])
def test_predicted_traffic_is_what_is_recorded(grid: str, style: str) -> None:
    axes = GRIDS[grid]
    for counts, ragged, mode in itertools.product(
        batches(axes)[:2], (False, True), ("cheapest", "naive")
    ):
        toy = Toy(stack(style, 2, capture=True), counts)
        batch = Batch(max(counts), sum(counts), ragged)
        plan = planner(axes).plan(toy.stages, batch, mode=mode)
        (start,) = plan.start
        log = toy.simulate(plan.rules, moves_of(plan), start, plan.sliced)
        toy.compare(log, plan.costs, plan.start, plan.moves, plan.sliced)


@pytest.mark.parametrize(
    "topology", [Topology(tp=4, attn_dp=2), Topology(tp=3), Topology(tp=2, attn_dp=2)]
)
def test_axes_name_groups_of_the_topology(topology: Topology) -> None:
    axes = Axes.of(topology)
    for rank in range(topology.tp):
        for name, group in groups_of(axes)[rank].items():
            assert Groups.of(topology.at(rank))[name].ranks == group.ranks
            assert Groups.of(topology.at(rank))[name].rank == group.rank


def test_a_long_stack_costs_look_ups_only() -> None:
    """Fronts repeat after a few layers: a hundred layers search no more than ten."""
    axes = Axes.of(Topology(tp=64, attn_dp=8))
    for batch in (Batch(4, 32), Batch(16384, 8 * 16384)):
        searched = []
        for layers in (10, 100):
            chief = Planner(axes, WIDTH)
            plan = chief.plan((declare_attn(), declare_ffn()) * layers, batch)
            search = chief.search(batch)
            searched.append(
                (len(search._fronts), sum(len(b._steps) for b in search._boundaries.values()))
            )
            assert plan.cost == sum(
                follow(plan.costs, stage, before, edge.moves).cost
                for stage, before, edge in zip(
                    plan.stages,
                    [plan.start, *(e.stream for e in plan.edges)],
                    plan.edges,
                    strict=False,
                )
            )
        assert searched[0] == searched[1] and searched[0][0] < 20 and searched[0][1] < 400


def test_a_long_stack_is_planned_as_a_short_one_repeated() -> None:
    """Without memory between stages the search finds the same cost."""
    axes = GRIDS["tp4dp2"]
    for rows in (1, 64, 16384):
        chief = Planner(axes, WIDTH)
        stages = stack("parallel_two_norms", 9)
        search = chief.search(Batch(rows, 2 * rows))
        best = {(Term(1, 2),): 0}
        for stage in stages:
            after: dict[Stream, int] = {}
            for stream, cost in best.items():
                for edge in search.edges(stream, stage):
                    total = cost + edge.cost
                    after[edge.stream] = min(total, after.get(edge.stream, total))
            best = after
        assert chief.plan(stages, Batch(rows, 2 * rows)).cost == min(best.values())


def test_runner_ups_are_what_another_stream_would_cost() -> None:
    axes, batch = GRIDS["tp4dp2"], Batch(64, 128)
    chief = Planner(axes, WIDTH)
    plan = chief.plan(LLAMA, batch)
    extra = chief.search(batch).runner_ups(plan)
    taken = [plan.start, *(edge.stream for edge in plan.edges)]
    for index, stage in enumerate(plan.stages):
        best = None
        streams = {
            edge.stream
            for edge in chief.search(batch).edges(taken[index - 1], plan.stages[index - 1])
        }
        for stream in streams if index else {plan.start}:
            for edge in chief.search(batch).edges(stream, stage):
                if (stream, edge.stream) != (taken[index], taken[index + 1]):
                    try:
                        forced = chief.plan(LLAMA, batch, forced={index: edge.moves})
                    except BoundaryError:
                        continue
                    same_way = forced.edges[index] == plan.edges[index]
                    if not same_way and (best is None or forced.cost < best):
                        best = forced.cost
        assert extra[index] is not None and best is not None
        assert 0 <= extra[index] <= best - plan.cost
    assert min(value for value in extra if value is not None) > 0


def test_a_stage_that_cannot_be_entered_is_named() -> None:
    chief = Planner(GRIDS["tp4dp2"], WIDTH)
    stuck = declare_ffn(rows=("slice",), group="tp")
    with pytest.raises(
        BoundaryError, match=r"stage 1 \(mlp\) cannot be entered from .*\{SP SR\}.*attn_dp"
    ):
        chief.plan((declare_attn(), stuck), Batch(4, 8))
    forced = (Move("", (Step("slice", (), Term(0, 0), Term(1, 0)),)),)
    with pytest.raises(BoundaryError, match="stage 1 .*forced"):
        chief.plan(LLAMA, Batch(4, 8), forced={1: forced})


def test_a_fused_operation_is_used_within_its_limits() -> None:
    small = Provider("ar_add_norm", ("all_reduce", "merge", "read"), 2, 2, most_bytes=64 * WIDTH)
    chief = Planner(Axes.of(Topology(tp=8)), WIDTH, providers=(ADD_NORM, small))
    for rows, used in ((8, True), (64, True), (128, False)):
        plan = chief.plan(LLAMA, Batch(rows, rows), mode="naive")
        assert all((edge.moves[0].provider == "ar_add_norm") == used for edge in plan.edges[1:])
    plain = chief.plan((declare_attn(), declare_own("own"), declare_head()), Batch(8, 8))
    assert not any(move.provider for move in plan.edges[0].moves + plain.edges[1].moves)
    move = Move("ar_add_norm", plan.edges[1].moves[0].steps)
    for hostile in (move, Move("add_norm", ()), Move("", ()), Move("odd", move.steps)):
        with pytest.raises(BoundaryError, match="no provider"):
            follow(plan.costs, LLAMA[1], plan.edges[0].stream, (hostile,))


def test_a_fused_operation_works_on_one_term_of_the_stream() -> None:
    twins = (("all_reduce", "post"), ("read",), ("slice",))
    providers = tuple(
        Provider(f"x{i}", twin, 0, 0, most_bytes=10**9) for i, twin in enumerate(twins)
    )
    costs = Planner(GRIDS["tp2"], WIDTH, providers=providers).plan(LLAMA, Batch(4, 4)).costs
    owed, whole, post, part = Term(0, 0), Term(0, 1), Term(0, 1, "mlp"), Term(1, 1)
    pay, norm = Step("all_reduce", (), owed, whole), Step("post", (), post, whole)
    read, cut = Step("read", (), whole, whole), Step("slice", ("attn",), whole, part)
    for stage, state, move in (
        (LLAMA[0], State((owed, post)), Move("x0", (pay, norm))),
        (declare_attn(read="plain"), State((whole,)), Move("x1", (read,))),
        (LLAMA[0], State((whole,), (0,)), Move("x2", (cut,))),
    ):
        assert list(replay(costs, stage, state, tuple(Move("", (step,)) for step in move.steps)))
        with pytest.raises(BoundaryError, match="no provider 'x"):
            list(replay(costs, stage, state, (move,)))
    nothing = replace(costs, providers=(Provider("x1", ("read",), 0, 0, most_bytes=0),))
    assert (
        costs.saved(LLAMA[0], "x1", (read,)) == 0 and nothing.saved(LLAMA[0], "x1", (read,)) is None
    )


def test_few_plans_serve_all_batches() -> None:
    for axes in (GRIDS["tp4dp2"], GRIDS["tp8dp4"], Axes.of(Topology(tp=8))):
        book = PlanBook(Planner(axes, WIDTH), LLAMA)
        groups = axes.size(0, axes.attn_depth)
        distinct = {
            book.plan((rows,) * groups, padded=padded).moves
            for rows in range(1, 2**15, 397)
            for padded in (False, True)
        }
        assert 2 <= len(distinct) <= 6


def test_the_bucket_depends_on_global_counts_only() -> None:
    assert Batch.bucket((0, 0)) == Batch(1, 2)
    assert Batch.bucket((3, 9)) == Batch(16, 32) == Batch.bucket((16, 1))
    assert Batch.bucket((3, 9), ragged=True) == Batch(16, 16, ragged=True)
    assert Batch.bucket((9, 9), ragged=True) == Batch(16, 32, ragged=True)
    assert Batch.bucket((2048,), parts=3) == Batch.bucket((2049,), parts=3) == Batch(3072, 3072)
    assert Batch.bucket((2048,), parts=4) == Batch.bucket((2048,)) == Batch(2048, 2048)
    book = PlanBook(Planner(GRIDS["tp8dp4"], WIDTH), LLAMA)
    assert book.plan((8192, 16, 0, 0)).rules.ragged
    assert not book.plan((8192, 16, 0, 0), padded=True).rules.ragged
    assert not book.plan((256, 256, 255, 256)).rules.ragged
    assert book.plan((5, 5, 5, 5)) is book.plan((8, 7, 6, 5), padded=True)


SCRIPT = """
from boundary.stacks import stack
from boundary.toy import GRIDS
from archzoo.planning.plan import digest
from archzoo.planning.planner import Planner
from archzoo.parallel.rows import Batch
plans = [
    Planner(GRIDS[grid], 8192, fold=True).plan(stack(style, capture=True), Batch(rows, rows))
    for grid in ("tp2", "tp4dp2") for style in ("pre", "sandwich", "parallel") for rows in (1, 999)
]
print(digest(plans))
"""


def test_processes_with_other_hash_seeds_agree() -> None:
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(here), *filter(None, sys.path)])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "77")
    ]
    said = {process.communicate()[0].strip() for process in running}
    assert len(said) == 1 and len(said.pop()) == 16


def test_the_digest_tells_everything_apart() -> None:
    def plan(axes: Axes = GRIDS["tp4dp2"], table: CostTable | None = None, **other: object) -> Plan:
        options = {"stages": LLAMA, "batch": Batch(4, 8), "providers": (), "fold": False, **other}
        chief = Planner(
            axes, WIDTH, table, fold=bool(options["fold"]), providers=options["providers"]
        )  # type: ignore[arg-type]  # as given below
        return chief.plan(options["stages"], options["batch"])  # type: ignore[arg-type]  # as given below

    different = [
        plan(),
        plan(GRIDS["tp8dp4"]),
        plan(table=CostTable(LINKS["pcie"])),
        plan(stages=(*LLAMA[:-1], declare_head(rows="attn"))),
        plan(batch=Batch(8, 16)),
        plan(batch=Batch(4, 8, ragged=True)),
        plan(providers=(ADD_NORM,)),
        plan(fold=True),
    ]
    assert len({digest([one]) for one in different}) == len(different)
    assert digest([plan()]) == digest([plan()]) != digest([plan(), plan()])


def test_the_residual_joins_a_sum_only_where_asked() -> None:
    """Folded into a low-precision sum it would lose digits."""
    partial, part = Term(0, 0), Term(1, 1)
    for fold in (False, True):
        chief = Planner(GRIDS["tp2"], WIDTH, CostTable(kernel=1), fold=fold)
        edges = chief.search(Batch(4, 4)).edges((partial, part), declare_ffn())
        cheapest = min(edges).moves
        spread = Move("", (Step("spread", (), part, partial),))
        assert (spread in cheapest) == fold, "the sum brings the slices of the residual along"


def test_planner_and_boundaries_stay_small() -> None:
    """Lines that are neither blank, nor comments, nor documentation."""
    total = 0
    core = Path(planner_module.__file__).parents[1]
    for path in (*core.glob("planning/*.py"), *core.glob("boundary/*.py")):
        source = path.read_text()
        words = {
            line
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        lines = enumerate(source.splitlines(), 1)
        total += sum(
            bool(line.strip()) and not line.lstrip().startswith("#") and number not in words
            for number, line in lines
        )
    assert 500 < total < 1000


def test_a_mode_that_does_not_exist_is_refused_and_not_taken_for_naive() -> None:
    planner = Planner(Axes.of(Topology(tp=2)), 64)
    stages = (declare_attn(), declare_ffn())
    for make in (
        lambda: PlanBook(planner, stages, mode="cheap"),  # type: ignore[arg-type]  # that is the test
        lambda: planner.plan(stages, Batch(8, 8), mode=""),  # type: ignore[arg-type]  # that is the test
    ):
        with pytest.raises(BoundaryError, match="one of cheapest, naive"):
            make()
