"""The table of a plan: layers that are alike once, costs that add up."""

from __future__ import annotations

import pytest

from archzoo.cli.boundary_table import Section, repeats, sections, sent_bytes
from archzoo.parallel import Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.rows import Batch
from archzoo.planning.facts import HANDOFF, declare_attn, declare_ffn, declare_head
from archzoo.planning.plan import Plan
from archzoo.planning.planner import Planner

LAYERS = (declare_attn(), declare_ffn())


def tabled(plan: Plan) -> list[Section]:
    return list(sections(plan, [None] * len(plan.stages)))


def test_sections() -> None:
    planner, batch = Planner(Axes.of(Topology(tp=8)), 8192), Batch(16384, 16384)
    plan = planner.plan((*LAYERS * 20, HANDOFF, *LAYERS * 20, declare_head()), batch)
    found = list(sections(plan, planner.search(batch).runner_ups(plan)))
    assert sorted(number for each in found for number in each.at) == list(range(82))
    assert all(plan.stages[at].name == each.name for each in found for at in each.at)
    assert (found[0].name, found[-1].name) == ("attn", "head")
    assert range(2, 39, 2) in [each.at for each in found]
    lines = [line for each in found for line in each.lines]
    scatter = next(line for line in lines if line.step == "reduce_scatter P>S")
    assert (scatter.rows, scatter.group, scatter.nbytes) == (2048, "tp", 16384 * 8192)
    repeated = next(each for each in found if len(each.at) == 19)
    assert repeated.runner_up is not None and repeated.runner_up > 0
    send = next(line for line in lines if line.step == "send")
    assert send.group == "pp" and send.nbytes in (2048 * 8192, 16384 * 8192)
    assert any(line.step == "add_norm(merge S, read S)" and not line.group for line in lines)


def test_costs_add_up_to_the_plan_but_for_computing() -> None:
    planner, batch = Planner(Axes.of(Topology(tp=4, attn_dp=2)), 8192), Batch(7, 14)
    plan = planner.plan((*LAYERS * 3, HANDOFF, *LAYERS * 3, declare_head()), batch)
    shown = sum(len(each.at) * line.us for each in tabled(plan) for line in each.lines)
    entered = sum(
        plan.costs.enter(stage, edge.state)
        for stage, edge in zip(plan.stages, plan.edges, strict=True)
        if stage.kind != "handoff"
    )
    assert shown == pytest.approx((plan.cost - entered) / 1e9)


def test_bytes_are_counted_as_often_as_a_stage_comes() -> None:
    planner = Planner(Axes.of(Topology(tp=4)), 8192)
    plan = planner.plan((*LAYERS * 5, declare_head()), Batch(16, 16), mode="naive")
    assert sent_bytes(tabled(plan)) == 10 * 16 * 8192
    alone = Planner(Axes.of(Topology()), 8192).plan((*LAYERS, declare_head()), Batch(16, 16))
    assert sent_bytes(tabled(alone)) == 0


def test_repeats() -> None:
    assert list(repeats("")) == []
    assert list(repeats("xababab")) == [(0, 1, 1), (1, 2, 3)]
    assert list(repeats("aaab")) == [(0, 1, 3), (3, 1, 1)]
