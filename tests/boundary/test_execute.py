"""Values are taken once; fused operations and selections are used as given."""

from __future__ import annotations

import pytest
import torch
from boundary.toy import GRIDS, ToyNorm

from archzoo.boundary.execute import Crossing, Held, Values
from archzoo.errors import BoundaryError
from archzoo.parallel.moving import RowMover
from archzoo.parallel.placement import Rules, Term
from archzoo.parallel.rows import RowMap
from archzoo.planning.facts import declare_attn, declare_head
from archzoo.planning.plan import Move
from archzoo.planning.steps import Step

WHOLE = Term(0, 0)
AXES = GRIDS["one"]
MOVER = RowMover(Rules(AXES), RowMap.of(AXES, (3,)), 0, {}.__getitem__)
READ = Move("", (Step("read", (), WHOLE, WHOLE),))


def test_values_are_taken_once_oldest_first() -> None:
    values, one, two = Values(), torch.ones(1), torch.zeros(1)
    values.put(WHOLE, Held(one))
    values.put(WHOLE, Held(two))
    values.put(Term(0, 0, "mlp"), Held(two, ToyNorm(0)))
    assert values.terms == (WHOLE, WHOLE, Term(0, 0, "mlp"))
    assert values.take(WHOLE).value is one and values.take(WHOLE).value is two
    with pytest.raises(BoundaryError, match=r"no value \(0, 0, ''\) in a stream of .*mlp"):
        values.take(WHOLE)


def test_a_fused_operation_does_its_steps_at_once_or_its_twin_does() -> None:
    calls = []

    def fused(crossing: Crossing, steps: tuple[Step, ...]) -> None:
        calls.append(steps)
        total = crossing.values.take(WHOLE).value + crossing.values.take(WHOLE).value
        crossing.read(WHOLE, total)

    steps = (Step("merge", (), WHOLE, WHOLE), *READ.steps)
    x, y = torch.randn(2, 3, 24, dtype=torch.float64)
    got = []
    for known in ({}, {"quick": fused}):
        values = Values()
        values.put(WHOLE, Held(x))
        values.put(WHOLE, Held(y))
        crossing = Crossing(declare_attn(), values, MOVER, {"attn": ToyNorm(1)}, fused=known)
        got.append(crossing.run((Move("quick", steps),))["attn"])
        assert torch.equal(values.take(WHOLE).value, x + y)
    assert (
        torch.equal(got[0], got[1]) and torch.equal(got[0], ToyNorm(1)(x + y)) and len(calls) == 1
    )


def test_a_head_that_selects_needs_to_know_which_rows() -> None:
    values = Values()
    values.put(WHOLE, Held(torch.ones(3, 24, dtype=torch.float64)))
    crossing = Crossing(declare_head(), values, MOVER, {"head": ToyNorm(1)})
    with pytest.raises(BoundaryError, match="head selects rows; give Crossing selection="):
        crossing.run((READ, Move("", (Step("select", ("head",), WHOLE, WHOLE),))))
