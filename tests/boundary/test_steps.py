"""The automaton: what is legal, what is refused, and with which words."""

from __future__ import annotations

import itertools

import pytest

from archzoo.errors import BoundaryError
from archzoo.parallel import Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.placement import OPS, Rules, Term
from archzoo.planning.facts import (
    HANDOFF,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_own,
    declare_parallel,
)
from archzoo.planning.steps import State, Step, apply, finish, steps_from

GRID = Axes.of(Topology(tp=4, attn_dp=2))


def placements(n: int, *posts: str) -> list[Term]:
    return [Term(s, d, p) for s in range(n + 1) for d in range(s, n + 1) for p in ("", *posts)]


def reachable(rules: Rules, stage: StageFacts, start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        for _, after in steps_from(rules, stage, todo.pop()):
            if after not in found:
                found.add(after)
                todo.append(after)
    return found


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("fold", [False, True])
def test_every_legal_step_is_proposed(ragged: bool, fold: bool) -> None:
    rules = Rules(GRID, ragged, fold)
    stage = declare_parallel(declare_attn(capture=True), declare_ffn(post=True))
    start = State((Term(0, 0, "mlp"), Term(1, 1), Term(1, 2)))
    ends = placements(2, "mlp", "odd")
    ons = [(), ("attn",), ("mlp",), ("attn", "mlp"), ("mlp", "attn"), ("aux",), ("attn", "aux")]
    states = sorted(reachable(rules, stage, start), key=repr)[::40]
    assert len(states) > 4
    for state in states:
        proposed = dict(steps_from(rules, stage, state))
        for step in itertools.starmap(Step, itertools.product((*OPS, "x"), ons, ends, ends)):
            try:
                after = apply(rules, stage, state, step)
            except BoundaryError:
                assert step not in proposed
            else:
                assert proposed[step] == after


SR, SP, RR, PP, SS = Term(1, 2), Term(1, 1), Term(0, 2), Term(0, 0), Term(2, 2)
POST = Term(1, 2, "attn")
READ = State((SR,), (1,))


@pytest.mark.parametrize(
    ("state", "step", "message"),
    [
        (State((PP,)), ("slice", (), PP, SP), "PP>SP is not legal from {PP}: slice cuts rows over"),
        (State((SP,)), ("slice", (), SP, Term(2, 2)), "replicated axes only"),
        (State((SP,)), ("all_reduce", (), RR, RR), "all_reduce RR is not legal"),
        (State((SR,)), ("all_reduce", (), SR, SR), "pays the whole debt"),
        (State((SR,)), ("spread", (), SR, PP), "only where sums are float32"),
        (State((Term(0, 1),)), ("reduce_scatter", (), Term(0, 1), SS), "pays the axes it splits"),
        (State((SR,)), ("all_gather", (), SR, SS), "joins rows that were split"),
        (State((SR,)), ("merge", (), SR, SR), "adds two equal terms"),
        (State((SR, SP)), ("merge", (), SP, SR), "adds two equal terms"),
        (State((POST, POST)), ("merge", (), POST, POST), "await no post-norm"),
        (
            State((Term(1, 1, "attn"),)),
            ("post", (), Term(1, 1, "attn"), SP),
            "complete term that awaits",
        ),
        (State((SR,)), ("post", (), SR, SR), "complete term that awaits"),
        (State((POST,)), ("slice", (), POST, SS), "slice"),
        (State((SP,)), ("read", (), SP, SP), "one complete term"),
        (State((POST,)), ("read", (), POST, POST), "awaits nothing"),
        (State((SR, SR)), ("read", (), SR, SR), "one complete term"),
        (State((SR,)), ("select", (), SR, SR), "keeps a head's rows"),
        (State((SR,)), ("slice", ("mlp",), SR, SS), "slice mlp SR>SS is not legal"),
        (READ, ("slice", (), SR, SS), "after the read only rows move"),
        (READ, ("read", (), SR, SR), "after the read only rows move"),
        (READ, ("all_reduce", ("mlp",), SP, SR), "after the read only rows move"),
        (READ, ("slice", ("mlp",), RR, SS), "not legal"),
        (READ, ("slice", ("attn",), SR, SS), "not legal"),
        (READ, ("select", ("mlp",), SR, SR), "keeps a head's rows"),
        (READ, ("conjure", ("mlp",), SR, SR), "conjure is no step; steps are slice, spread"),
        (READ, ("slice", ("mlp",), SR, Term(3, 2)), "not legal"),
        (READ, ("slice", ("mlp",), SR, Term(-1, 2)), "not legal"),
    ],
)
def test_refusals(state: State, step: tuple[object, ...], message: str) -> None:
    with pytest.raises(BoundaryError) as caught:
        apply(Rules(GRID), declare_ffn(post=True), state, Step(*step))  # type: ignore[arg-type]  # any four
    assert message in str(caught.value) and str(caught.value).startswith("mlp: ")


def test_attention_groups_of_different_sizes_cannot_be_scattered_over() -> None:
    step = Step("reduce_scatter", (), PP, SS)
    assert apply(Rules(GRID), declare_ffn(), State((PP,)), step).stream == (SS,)
    with pytest.raises(BoundaryError, match="equally many rows"):
        apply(Rules(GRID, ragged=True), declare_ffn(), State((PP,)), step)
    inside = Step("reduce_scatter", (), SP, SS)
    assert apply(Rules(GRID, ragged=True), declare_ffn(), State((SP,)), inside).stream == (SS,)


def test_the_residual_is_spread_only_where_sums_are_wide() -> None:
    step = Step("spread", (), SR, PP)
    assert apply(Rules(GRID, fold=True), declare_ffn(), State((SR,)), step).stream == (PP,)


@pytest.mark.parametrize(
    ("stage", "state"),
    [
        (declare_ffn(), State((SR,))),
        (declare_ffn(), READ),
        (declare_ffn(rows=("slice",), group="tp"), State((SR,), (2,))),
        (declare_attn(capture=True), State((RR,), (1, 0))),
        (declare_head(rows="attn"), READ),
        (HANDOFF, State((SP,))),
        (HANDOFF, State((SR, SR))),
    ],
)
def test_a_stage_is_entered_only_as_it_said(stage: StageFacts, state: State) -> None:
    with pytest.raises(BoundaryError, match=f"{stage.name} cannot be entered from .*needs"):
        finish(Rules(GRID), stage, state)


def test_what_stages_leave() -> None:
    rules = Rules(GRID)
    assert finish(rules, declare_ffn(post=True), State((SR,), (0,))) == (Term(0, 0, "mlp"), SR)
    assert finish(rules, declare_attn(capture=True), State((RR,), (1, 1))) == (RR, SP)
    assert finish(rules, declare_head(rows="attn"), READ._replace(selected=True)) == ()
    assert finish(rules, HANDOFF, State((SS,))) == (SS,)
    taken = apply(rules, declare_own("own"), State((SR,)), Step("read", (), SR, SR))
    assert taken == State((), (1,)) and finish(rules, declare_own("own"), taken) == (SR,)
