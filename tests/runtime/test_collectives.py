"""What ranks say to each other in a whole forward: counted, and as many bytes as the plan says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from runtime.pipelines import LAYERS, VARIANTS, VOCAB, Checkpoints, load
from runtime.topologies import BYTES_ONLY

import archzoo
from archzoo.parallel.pricing import Traffic
from archzoo.planning.plan import Plan, replay
from archzoo.planning.steps import State
from archzoo.runtime.executor import SimulatedExecutor
from archzoo.runtime.request import SamplingParams
from tiny import ids_of

ROWS = 8
"""Of each attention group; a power of two, so that the plan is made for this very size."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def recorded(model: archzoo.Model, call: Callable[[], object]) -> list[Counter[Traffic]]:
    """What every rank entered in a call."""
    executor = model.engine.executor
    assert isinstance(executor, SimulatedExecutor)
    with executor._world.record() as log:
        call()
    entered: list[Counter[Traffic]] = [Counter() for _ in executor.ranks]
    for kind, group, nbytes, rank in log:
        entered[rank][Traffic(kind, group, nbytes)] += 1
    return entered


def prefill(model: archzoo.Model) -> Callable[[], object]:
    """A forward over one prompt in each group, all of whose rows leave the model."""
    prompts = [ids_of(ROWS, VOCAB, seed=at) for at, _ in enumerate(model.engine.lanes)]
    return lambda: model.logits(prompts)


def decode(model: archzoo.Model) -> Callable[[], object]:
    """A forward in which eight requests of each group decode."""
    for at in range(ROWS * len(model.engine.lanes)):
        prompt = ids_of(3, VOCAB, seed=at)
        model.engine.add(model._request(prompt, SamplingParams(4, ignore_eos=True)))
    model.engine.step()
    assert all(len(lane.scheduler.running) == ROWS for lane in model.engine.lanes)
    return model.engine.step


FORWARDS = pytest.mark.parametrize("forward", [prefill, decode])


@FORWARDS
@pytest.mark.parametrize(
    ("variant", "tp"), [("replicated", 2), ("tied", 3), ("fused", 4), ("several", 8)]
)
def test_the_naive_plan_sums_twice_a_layer_once_the_embedding_and_gathers_the_vocabulary(
    checkpoints: Checkpoints, variant: str, tp: int, forward: Any
) -> None:
    model = load(checkpoints(variant)[0], tp=tp, plan="naive")
    entered = recorded(model, forward(model))
    rows = ROWS * VARIANTS[variant].get("hidden_size", 32) * 8
    multiple = math.lcm(64, tp)
    padded = ROWS * -(-VOCAB // multiple) * multiple // tp * 8
    for each in entered:
        assert each == {
            Traffic("all_reduce", "tp", rows): 2 * LAYERS,
            Traffic("all_reduce", "attn_tp", rows): 1,
            Traffic("all_gather", "tp", padded): 1,
        }


def predicted(model: archzoo.Model, plan: Plan) -> Counter[Traffic]:
    """What all ranks together should enter: embedding, every boundary, vocabulary."""
    sizes = model.engine.executor.topology
    width = plan.costs.pricing.width
    total: Counter[Traffic] = Counter()
    if sizes.attn_tp > 1:
        total[Traffic("all_reduce", "attn_tp", ROWS * width)] += 1
    stream = plan.start
    for stage, edge in zip(plan.stages, plan.edges, strict=True):
        for met, _, _ in replay(plan.costs, stage, State(stream), edge.moves):
            total[met] += met is not None
        if stage.kind == "handoff":
            sent = plan.costs.sent(edge.state)
            total.update([sent, sent._replace(kind="recv")])
        stream = edge.stream
    last: Any = model.engine.runners[-1].module
    group = last.lm_head.group
    rows = ROWS * (1 if group.name == "attn_tp" else sizes.attn_dp)
    if group.size > 1:
        total[Traffic("all_gather", group.name, rows * last.lm_head.weight.shape[0] * 8)] += 1
    return Counter({met: count * sizes.tp for met, count in total.items() if met and count})


@FORWARDS
@pytest.mark.parametrize("plan", [{}, {"plan": "naive"}, {"costs": BYTES_ONLY}], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        {"tp": 2},
        {"tp": 8, "pp": 2},
        {"tp": 4, "attn_dp": 2},
        {"tp": 4, "attn_dp": 2, "dp_lm_head": True, "pp": 3},
        {"tp": 4, "attn_dp": 4},
        {"tp": 8, "attn_dp": 2, "pp": 2},
    ],
    ids=str,
)
def test_bytes_are_those_that_the_plan_predicts(
    checkpoints: Checkpoints, sizes: dict[str, Any], plan: dict[str, Any], forward: Any
) -> None:
    model = load(checkpoints("replicated")[0], kv_slots=512, **sizes, **plan)
    entered = recorded(model, forward(model))
    book, counts = model.module.model.stack.book, (ROWS,) * len(model.engine.lanes)
    assert sum(entered, Counter()) == predicted(model, book.of_rows(book.rows(counts, counts)))
    stages = model.engine.executor.topology.pp
    for first in range(0, len(entered), len(entered) // stages):
        stage = entered[first : first + len(entered) // stages]
        assert all(each == stage[0] for each in stage), "ranks of a stage enter the same"
