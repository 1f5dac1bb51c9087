"""RowMover's local work; its collectives are proved beside whole stacks in tests/boundary."""

from __future__ import annotations

import pytest
import torch

from archzoo.errors import CollectiveError
from archzoo.parallel import Groups, Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.moving import RowMover
from archzoo.parallel.placement import Rules, Term
from archzoo.parallel.rows import RowMap

TOPOLOGY = Topology(tp=4, attn_dp=2)
AXES = Axes.of(TOPOLOGY)


def mover(rank: int, counts: tuple[int, ...] = (4, 2)) -> RowMover:
    rows = RowMap.of(AXES, counts, ragged=True, sliced=True)
    return RowMover(Rules(AXES, ragged=True), rows, rank, Groups.of(TOPOLOGY.at(rank)).__getitem__)


def test_a_spread_contributes_once_whatever_the_copies_hold() -> None:
    rows = torch.arange(8.0).view(4, 2)
    first = mover(0).move(rows, "spread", Term(1, 2), Term(0, 0))
    assert first.shape == (6, 2) and torch.equal(first[:4], rows) and not first[4:].any()
    stale = torch.full((4, 2), torch.nan)
    assert torch.equal(mover(1).move(stale, "spread", Term(1, 2), Term(0, 0)), torch.zeros(6, 2))
    partial = mover(3).move(torch.ones(2, 2), "spread", Term(1, 1), Term(0, 0))
    assert torch.equal(partial, torch.tensor([[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 2))


def test_slices_of_any_depth() -> None:
    rows = torch.arange(6)
    for rank, want in enumerate(([0, 1], [2, 3], [4], [5])):
        assert mover(rank).move(rows, "slice", Term(0, 2), Term(2, 2)).tolist() == want
    assert mover(2).move(rows, "slice", Term(0, 2), Term(1, 2)).tolist() == [4, 5]
    assert mover(2, (4, 0)).move(rows[:4], "slice", Term(0, 2), Term(1, 2)).tolist() == []


def test_picked_rows_come_first_and_zeros_follow() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    kept = mover(0, (4, 0)).pick(rows, torch.tensor([2, 0]))
    assert kept.flatten().tolist() == [3, 1, 0, 0]
    assert mover(2, (4, 0)).pick(rows[:0], torch.tensor([], dtype=torch.int64)).shape == (0, 1)
    assert mover(0).pick(rows.to(torch.bfloat16), torch.tensor([1])).dtype == torch.bfloat16


def test_a_mover_without_communicators_says_so() -> None:
    with pytest.raises(CollectiveError, match="'attn_tp'.*shapes only"):
        mover(0).move(torch.ones(4, 2), "all_reduce", Term(1, 1), Term(1, 2))
