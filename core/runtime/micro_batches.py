"""Micro-batches: a step cut into row ranges that pass the pipeline one behind the other.

Rows keep their order, so a request that is cut is a prompt in chunks: on every stage its earlier
rows are computed, and their keys and values written, before its later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..layers import InputLogprobs, LogitsProcessorOutput
from .runner import Wanted
from .step import Step, idle_step

MICRO_ROWS = 128
"""Rows of a micro-batch at least, unless a number is asked for: with fewer a stage mostly reads its
weights, and cutting a forward in two only reads them twice."""
PER_STAGE = 4
"""Micro-batches for each stage at most: of M over P stages, (P - 1) / (M + P - 1) of the time a
stage waits, with 4 P less than a fifth."""


def count_for(rows: int, stages: int, asked: int | None) -> int:
    """How many micro-batches a step of so many rows makes.

    Args:
        rows: of the step.
        stages: of the pipeline; one alone gains nothing.
        asked: at most so many, as far as there are rows; None decides by MICRO_ROWS.
    """
    if stages == 1:
        return 1
    most = min(PER_STAGE * stages, rows // MICRO_ROWS) if asked is None else min(asked, rows)
    return max(1, most)


def micro_batches(step: Step, wanted: Wanted, count: int) -> list[tuple[Step, Wanted]]:
    """The step in at most count parts of about equal rows, in row order.

    Where pooled rows are wanted, requests stay whole: a mean needs all rows in one forward.

    Args:
        step: what to compute.
        wanted: what to give back; its rows ascend.
        count: parts, at least 1.
    """
    if count == 1:
        return [(step, wanted)]
    rows = len(step.input_ids)
    cuts = [rows * at // count for at in range(count + 1)]
    if wanted.pooling is not None:
        ends = list(accumulate(step.extend_lens))
        cuts = [0, *(next(end for end in ends if end >= cut) for cut in cuts[1:])]
    borders = pairwise(sorted(set(cuts)))
    return [(_part(step, start, stop), _want(step, wanted, start, stop)) for start, stop in borders]


def spread_out(
    steps: Sequence[Step], wanted: Sequence[Wanted], count: int
) -> list[list[tuple[Step, Wanted]]]:
    """Micro-batches of every attention group, equally many: where rows end, idle ones follow.

    Args:
        steps, wanted: of each group.
        count: parts at most, at least 1.
    """
    parts = [
        micro_batches(step, wish, count) if step.input_ids else [(step, wish)]
        for step, wish in zip(steps, wanted, strict=True)
    ]
    most = max(map(len, parts))
    return [
        [*own, *[(idle_step(), _nothing_of(wish))] * (most - len(own))]
        for own, wish in zip(parts, wanted, strict=True)
    ]


def _nothing_of(wanted: Wanted) -> Wanted:
    """The same kinds of output, of no rows."""
    logprobs, pooling = wanted.logprobs, wanted.pooling
    return Wanted(
        (),
        logprobs and replace(logprobs, rows=[], targets=[]),
        pooling and replace(pooling, requests=()),
    )


def join(outputs: Sequence[LogitsProcessorOutput]) -> LogitsProcessorOutput:
    """The output of the whole step, from those of its micro-batches in order."""
    if len(outputs) == 1:
        return outputs[0]
    logprobs = [each.input_logprobs for each in outputs if each.input_logprobs is not None]
    columns = [[getattr(each, f.name) for each in logprobs] for f in fields(InputLogprobs)]
    return LogitsProcessorOutput(
        _cat([each.next_token_logits for each in outputs]),
        InputLogprobs(*(torch.cat(column) for column in columns)) if logprobs else None,
        _cat([each.pooled for each in outputs]),
        tuple(map(torch.cat, zip(*(each.aux_hidden_states for each in outputs), strict=True))),
    )


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _part(step: Step, start: int, stop: int) -> Step:
    """Rows start to stop of the step."""
    part = Step(
        step.mode,
        known_lens=step.known_lens[start:stop],
        input_ids=step.input_ids[start:stop],
        new_slots=step.new_slots[start:stop],
        beside=None if step.beside is None else step.beside[start:stop],
    )
    begin = 0
    for at, size in enumerate(step.extend_lens):
        end = begin + size
        low, high = max(begin, start), min(end, stop)
        if low < high:
            part.request_ids.append(step.request_ids[at])
            part.req_pool_indices.append(step.req_pool_indices[at])
            part.prefix_lens.append(step.prefix_lens[at] + low - begin)
            table_row = step.req_pool_indices[at]
            if low == begin and table_row in step.borrowed_slots:
                part.borrowed_slots[table_row] = step.borrowed_slots[table_row]
            part.extend_lens.append(high - low)
            part.samples.append(max(0, high - max(low, end - step.samples[at])))
        begin = end
    return part


def _want(step: Step, wanted: Wanted, start: int, stop: int) -> Wanted:
    """What of it rows start to stop give."""
    rows, logprobs, pooling = wanted.sample_rows, wanted.logprobs, wanted.pooling
    if rows is not None:
        rows = [row - start for row in rows if start <= row < stop]
    if logprobs is not None:
        pairs = zip(logprobs.rows, logprobs.targets, strict=True)
        inside = [(row - start, target) for row, target in pairs if start <= row < stop]
        logprobs = replace(
            logprobs, rows=[row for row, _ in inside], targets=[target for _, target in inside]
        )
    if pooling is not None:
        ends = list(accumulate(step.extend_lens))
        first = sum(end <= start for end in ends)
        inside_ids = [at - first for at in pooling.requests if start < ends[at] <= stop]
        pooling = replace(pooling, requests=tuple(inside_ids))
    return Wanted(rows, logprobs, pooling)
