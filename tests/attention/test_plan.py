"""How a forward is cut into jobs, and the parts jobs are made of."""

from __future__ import annotations

import math

import pytest
import torch

from archzoo.attention import plan
from archzoo.attention.jobs import Block, GroupJob, SequenceJob, Span
from archzoo.attention.plan import LayerPlan
from archzoo.attention.reach import Reach
from archzoo.attention.scratch import Scratch

CAUSAL = Reach(None, 0)


def decode(totals: list[int], reach: Reach = CAUSAL) -> LayerPlan:
    """One query row each, request i in table row i, slots 100 i + position."""
    spans = [Span(row, 1, row, 1, total, row) for row, total in enumerate(totals)]
    return LayerPlan(spans, reach, table(len(totals)))


def table(requests: int) -> torch.Tensor:
    return torch.arange(requests)[:, None] * 100 + torch.arange(100)


def rows_of(jobs: tuple[GroupJob | SequenceJob, ...]) -> list[list[int]]:
    every = torch.arange(100)
    return [every[job.rows].tolist() if isinstance(job, GroupJob) else [job.row] for job in jobs]


def test_similar_lengths_make_one_group_without_a_mask_where_none_is_needed() -> None:
    (job,) = decode([7, 7, 7]).jobs(stored=True)
    assert isinstance(job, GroupJob)
    assert (job.rows, job.sequences, job.hidden) == (slice(0, 3), 3, None)
    assert job.slots.tolist() == [100 * row + at for row in range(3) for at in range(7)]


def test_padding_repeats_a_slot_of_the_same_request_and_is_hidden() -> None:
    (job,) = decode([3, 5]).jobs(stored=True)
    assert isinstance(job, GroupJob) and job.hidden is not None
    assert job.slots.tolist() == [0, 1, 2, 2, 2, 100, 101, 102, 103, 104]
    assert job.hidden.tolist() == [[[[False] * 3 + [True] * 2]], [[[False] * 5]]]


def test_a_window_cuts_what_is_gathered() -> None:
    (job,) = decode([3, 50, 90], Reach(3, 0)).jobs(stored=True)
    assert isinstance(job, GroupJob)
    assert job.slots.tolist() == [0, 1, 2, 2, 146, 147, 148, 149, 286, 287, 288, 289]


def test_unequal_lengths_are_not_padded_to_the_longest() -> None:
    jobs = decode([80, 3, 41, 4, 79]).jobs(stored=True)
    assert rows_of(jobs) == [[0, 2, 4], [1, 3]]


def test_a_group_gathers_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GROUP_SLOTS", 25)
    jobs = decode([10, 10, 10, 10, 10]).jobs(stored=True)
    assert rows_of(jobs) == [[0, 1], [2, 3], [4]]


def test_rows_that_are_not_stored_are_not_grouped() -> None:
    jobs = decode([7, 7]).jobs(stored=False)
    assert all(isinstance(job, SequenceJob) for job in jobs)
    assert rows_of(jobs) == [[0], [1]]


def test_consecutive_slots_are_read_in_place() -> None:
    (job,) = LayerPlan([Span(0, 4, 0, 4, 9, 1)], CAUSAL, table(2)).jobs(stored=True)
    assert isinstance(job, SequenceJob)
    assert (job.run, job.slots, job.keys, job.fresh) == (100, None, 9, slice(4, 4))


def test_shuffled_slots_with_the_ends_of_a_run_are_not_a_run() -> None:
    slots = table(1)
    slots[0, 1:4] = torch.tensor([3, 1, 2])
    (job,) = LayerPlan([Span(0, 1, 0, 1, 6, 0)], CAUSAL, slots).jobs(stored=True)
    assert isinstance(job, SequenceJob) and job.slots is not None
    assert (job.run, job.slots.tolist()) == (None, [0, 3, 1, 2, 4, 5])


def test_rows_apart_from_the_cache_follow_what_is_cached() -> None:
    spans = [Span(0, 2, 0, 3, 9, 1), Span(2, 2, 3, 2, 2, 0)]
    cached, new = LayerPlan(spans, CAUSAL, table(2)).jobs(stored=False)
    assert isinstance(cached, SequenceJob) and isinstance(new, SequenceJob)
    assert (cached.run, cached.keys, cached.fresh) == (100, 9, slice(0, 3))
    assert (new.run, new.slots, new.keys, new.fresh) == (None, None, 2, slice(3, 5))


def test_blocks_read_only_keys_they_can_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "QUERY_BLOCK", 2)
    (job,) = LayerPlan([Span(0, 5, 0, 5, 9, 0)], Reach(3, 0), table(1)).jobs(stored=True)
    assert isinstance(job, SequenceJob)
    assert (job.keys, job.run) == (8, 1)
    assert job.blocks == (
        Block(0, 2, 0, 5, 3),
        Block(2, 4, 2, 7, 3),
        Block(4, 5, 4, 8, None),
    )


def test_a_row_that_sees_everything_needs_no_mask() -> None:
    (job,) = decode([7]).jobs(stored=True)
    assert isinstance(job, SequenceJob)
    assert job.blocks == (Block(0, 1, 0, 7, None),)


def test_jobs_are_planned_once() -> None:
    layer = decode([7, 7])
    assert layer.jobs(stored=True) is layer.jobs(stored=True)


def test_biases_are_made_once_for_each_dtype() -> None:
    layer = LayerPlan([Span(0, 3, 0, 3, 5, 0)], CAUSAL, table(1))
    (job,) = layer.jobs(stored=True)
    assert isinstance(job, SequenceJob)
    like = torch.empty(0)
    first, again = (layer.block_bias(job.blocks[0], 2, like) for _ in range(2))
    assert first is not None and again is not None
    assert first.data_ptr() == again.data_ptr()
    hidden = torch.ones(3, 5, dtype=torch.bool).triu(3).repeat_interleave(2, dim=0)
    assert torch.equal(first == -math.inf, hidden)
    wide = layer.block_bias(job.blocks[0], 2, like.double())
    assert wide is not None and wide.dtype is torch.float64


@pytest.mark.parametrize("reach", [Reach(None, 0), Reach(2, 0), Reach(2, 2), Reach(None, None)])
def test_bias_hides_says_and_bounds_agree(reach: Reach) -> None:
    total = 6
    bias = reach.bias(total, 0, total, torch.empty(0, dtype=torch.float64))
    for first in range(total):
        seen = (bias[first] == 0).nonzero().flatten().tolist()
        assert seen == list(range(reach.first_key(first), reach.end_key(first, total)))
        for last in range(first, total):
            for start in range(total):
                for stop in range(start + 1, total + 1):
                    block = bias[first : last + 1, start:stop]
                    assert reach.hides(first, last, start, stop) == bool((block != 0).any())


def test_scratch_keeps_its_buffers_and_grows_them() -> None:
    scratch, source = Scratch(), torch.arange(24.0).view(6, 2, 2)
    large = scratch.gather("k", source, torch.tensor([5, 0, 3]))
    assert torch.equal(large, source[[5, 0, 3]])
    small = scratch.gather("k", source, torch.tensor([1]))
    assert torch.equal(small, source[[1]])
    assert small.data_ptr() == large.data_ptr()
    other = scratch.gather("v", source, torch.tensor([2]))
    assert torch.equal(other, source[[2]]) and torch.equal(small, source[[1]])
    grown = scratch.gather("k", source, torch.tensor([0, 1, 2, 3, 4]))
    assert torch.equal(grown, source[:5])
    assert torch.equal(
        scratch.gather("k", source.double(), torch.tensor([4])), source[[4]].double()
    )
