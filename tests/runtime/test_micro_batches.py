"""Steps cut into micro-batches: every row once, in order, and every wish with its row."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch

from archzoo.forward import ForwardMode, PoolingRequest
from archzoo.layers import InputLogprobs, LogitsProcessorOutput
from archzoo.runtime.micro_batches import count_for, join, micro_batches
from archzoo.runtime.runner import Logprobs, Wanted
from archzoo.runtime.step import Step


def step_of(lengths: list[int], prefixes: list[int] | None = None) -> Step:
    rows = sum(lengths)
    prefixes = prefixes or [3 * at for at in range(len(lengths))]
    return Step(
        ForwardMode.EXTEND,
        [100 + at for at in range(len(lengths))],
        [50 + at for at in range(len(lengths))],
        prefixes,
        lengths,
        list(range(1000, 1000 + rows)),
        [at % 2 == 0 for at in range(len(lengths))],
        list(range(rows)),
        list(range(500, 500 + rows)),
    )


def rows_of(step: Step) -> list[tuple[int, int, int, int, int, int]]:
    """(request, table row, position, id, slot, known length) of every row."""
    owners = [at for at, count in enumerate(step.extend_lens) for _ in range(count)]
    return [
        (step.request_ids[at], step.req_pool_indices[at], *rest)
        for at, *rest in zip(
            owners, step.positions, step.input_ids, step.new_slots, step.known_lens, strict=True
        )
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("lengths", [[1], [9], [1, 1, 1, 1], [5, 1, 3], [1, 12, 1, 1], [2] * 7])
def test_parts_put_together_are_the_step(lengths: list[int], count: int) -> None:
    step = step_of(lengths)
    parts = micro_batches(step, Wanted(step.sample_rows), count)
    assert 1 <= len(parts) <= count
    assert [row for part, _ in parts for row in rows_of(part)] == rows_of(step)
    sizes = [len(part.input_ids) for part, _ in parts]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    assert len(parts) == min(count, sum(lengths))
    starts = [0, *accumulate(sizes)]
    sampled = [
        start + row for start, (_, wanted) in zip(starts, parts, strict=False)
        for row in wanted.sample_rows or ()
    ]  # fmt: skip
    assert sampled == step.sample_rows
    for part, wanted in parts:
        assert part.sample_rows == wanted.sample_rows and part.mode is step.mode


def test_a_cut_request_is_a_prompt_in_chunks() -> None:
    (first, _), (second, _) = micro_batches(step_of([6], [10]), Wanted(), 2)
    assert (first.prefix_lens, first.extend_lens, first.samples) == ([10], [3], [False])
    assert (second.prefix_lens, second.extend_lens, second.samples) == ([13], [3], [True])


def test_decodes_stay_decodes() -> None:
    step = step_of([1] * 5, [7, 3, 9, 1, 4])
    step.mode = ForwardMode.DECODE
    parts = [part for part, _ in micro_batches(step, Wanted(), 2)]
    assert [part.mode for part in parts] == [ForwardMode.DECODE] * 2
    assert [part.positions for part in parts] == [[7, 3], [9, 1, 4]]


def test_log_probabilities_go_with_their_rows() -> None:
    wanted = Wanted((), Logprobs([0, 2, 3, 6], [10, 12, 13, 16], 2, (5,), 0.5))
    parts = [each for _, each in micro_batches(step_of([4, 4]), wanted, 4)]
    asked = [each.logprobs for each in parts]
    assert [list(each.rows) for each in asked if each] == [[0], [0, 1], [], [0]]
    assert [list(each.targets) for each in asked if each] == [[10], [12, 13], [], [16]]
    assert {(e.top_k, e.token_ids, e.temperature) for e in asked if e} == {(2, (5,), 0.5)}
    assert [each.sample_rows for each in parts] == [[]] * 4


def test_every_row_wanted_stays_every_row() -> None:
    assert [w.sample_rows for _, w in micro_batches(step_of([4]), Wanted(), 2)] == [None, None]


@pytest.mark.parametrize("seed", range(20))
def test_pooled_requests_stay_whole(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 8))]
    ending = tuple(sorted(rng.sample(range(len(lengths)), rng.randint(0, len(lengths)))))
    step = step_of(lengths)
    pooling = PoolingRequest(ending, 3, False)
    parts = micro_batches(step, Wanted(pooling=pooling), rng.randint(1, 6))
    assert [row for part, _ in parts for row in rows_of(part)] == rows_of(step)
    assert [count for part, _ in parts for count in part.extend_lens] == lengths
    pooled = []
    for part, wanted in parts:
        assert wanted.pooling is not None
        assert (wanted.pooling.dimensions, wanted.pooling.normalize) == (3, False)
        pooled += [part.request_ids[at] for at in wanted.pooling.requests]
    assert pooled == [100 + at for at in ending]


@pytest.mark.parametrize(
    ("rows", "stages", "asked", "count"),
    [
        (0, 2, None, 1), (1, 2, None, 1), (255, 2, None, 1), (256, 2, None, 2), (512, 2, None, 4),
        (2048, 2, None, 8), (2048, 1, None, 1), (9, 1, 4, 1), (2048, 5, None, 16), (4096, 2, None, 8),
        (9, 2, 4, 4), (3, 2, 4, 3), (0, 2, 4, 1), (4096, 2, 1, 1),
    ],
)  # fmt: skip
def test_how_many(rows: int, stages: int, asked: int | None, count: int) -> None:
    assert count_for(rows, stages, asked) == count


def test_outputs_are_joined_in_order() -> None:
    def output(at: int) -> LogitsProcessorOutput:
        logprobs = InputLogprobs(*(torch.full((at, 2), float(at)) for _ in range(4)))
        return LogitsProcessorOutput(torch.full((1, 3), float(at)), logprobs, None)

    joined = join([output(1), output(0), output(2)])
    assert joined.next_token_logits is not None and joined.input_logprobs is not None
    assert joined.next_token_logits[:, 0].tolist() == [1, 0, 2] and joined.pooled is None
    assert joined.input_logprobs.chosen[:, 0].tolist() == [1, 2, 2]
    only = LogitsProcessorOutput(pooled=torch.ones(1, 2))
    assert join([only]) is only
    pooled = join([only, LogitsProcessorOutput(pooled=torch.zeros(2, 2))])
    assert pooled.pooled is not None and pooled.pooled.shape == (3, 2)
    assert pooled.next_token_logits is None and pooled.input_logprobs is None
