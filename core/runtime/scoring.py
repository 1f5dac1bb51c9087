"""Prompts in, logits, log-probabilities, vectors or scores out: each prompt computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import InputError
from ..forward import PoolingRequest
from ..layers import InputLogprobs
from .engine import BATCH_TOKENS, Engine
from .runner import Logprobs, Wanted

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of a prompt's own tokens.

    Attributes:
        token_ids: the prompt.
        token_logprobs: one for each token; None for tokens before ``start`` and for the first,
            which nothing predicts.
        top_logprobs: for the same tokens, the k likeliest as (id, log-probability), best first.
    """

    token_ids: list[int]
    token_logprobs: list[float | None]
    top_logprobs: list[list[tuple[int, float]] | None] = field(default_factory=list)


def prompt_logits(engine: Engine, prompts: Prompts, chunk_size: int | None) -> list[Tensor]:
    """(T, V) logits of each prompt; (0, V) for an empty one."""
    dtype = engine.runners[0].module.dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    pieces: list[list[Tensor]] = [[] for _ in prompts]
    for group in _groups(prompts, engine):
        texts = [prompts[at] for at in group]
        with engine.scoring([len(ids) for ids in texts]) as scoring:
            for start, stop in _chunks(texts, chunk_size):
                for members, output in scoring.forward(texts, start, stop, lambda _: Wanted()):
                    assert output.next_token_logits is not None
                    lens = [len(texts[at][start:stop]) for at in members]
                    parts = torch.split(output.next_token_logits, lens)
                    for at, part in zip(members, parts, strict=True):
                        pieces[group[at]].append(part)
    empty = torch.empty(0, engine.config.vocab_size, dtype=wide)
    # Copies: what a forward returns is a view, and an inference tensor.
    return [torch.cat(parts or [empty]) for parts in pieces]


def prompt_logprobs(
    engine: Engine,
    ids: Sequence[int],
    start: int,
    top_k: int,
    temperature: float,
    chunk_size: int | None,
) -> PromptLogprobs:
    """Log-probability of each token from ``start`` on, given those before it.

    Row i predicts token i + 1, so a chunk's last row knows its target although the token comes
    in the next chunk.
    """
    count = len(ids)
    first = max(start, 1)
    parts: list[InputLogprobs] = []
    with engine.scoring([count]) as scoring:
        for begin, end in _chunks([ids], chunk_size):
            rows = range(max(begin, first - 1), min(end, count - 1))

            def want(members: Sequence[int], rows: range = rows, begin: int = begin) -> Wanted:
                here = rows if members else ()
                logprobs = Logprobs(
                    [row - begin for row in here],
                    [ids[row + 1] for row in here],
                    top_k,
                    temperature=temperature,
                )
                return Wanted(sample_rows=(), logprobs=logprobs)

            _, output = scoring.forward([ids], begin, end, want)[0]
            assert output.input_logprobs is not None
            parts.append(output.input_logprobs)
    return _joined(list(ids), first, top_k, parts)


def prompt_pooled(
    engine: Engine,
    prompts: Prompts,
    dimensions: int | None,
    normalize: bool,
    chunk_size: int | None,
) -> Tensor:
    """(R, D) vectors, or (R, labels) scores of a classifier, of the prompts' pooled rows.

    A long prompt may be computed in chunks where pooling allows it.
    """
    for at, ids in enumerate(prompts):
        if not ids:
            raise InputError(f"prompt {at} is empty: 0 tokens have no last row; leave it out")
    rows: dict[int, Tensor] = {}
    for group in _groups(prompts, engine):
        texts = [prompts[at] for at in group]
        with engine.scoring([len(ids) for ids in texts]) as scoring:
            for start, stop in _chunks(texts, chunk_size):

                def want(
                    members: Sequence[int], texts: Prompts = texts, stop: int = stop
                ) -> Wanted:
                    ending = tuple(n for n, at in enumerate(members) if len(texts[at]) <= stop)
                    return Wanted(pooling=PoolingRequest(ending, dimensions, normalize))

                for members, output in scoring.forward(texts, start, stop, want):
                    assert output.pooled is not None
                    done = [group[at] for at in members if len(texts[at]) <= stop]
                    rows.update(zip(done, output.pooled.unbind(0), strict=True))
    return torch.stack([rows[at] for at in range(len(prompts))])


def _joined(
    ids: list[int], first: int, top_k: int, parts: Sequence[InputLogprobs]
) -> PromptLogprobs:
    values = [value for part in parts for value in part.tokens.tolist()]
    nothing = min(first, len(ids))
    result = PromptLogprobs(ids, [*[None] * nothing, *values])
    if top_k:
        tops = [
            list(zip(row_ids, row_values, strict=True))
            for part in parts
            for row_ids, row_values in zip(
                part.top_ids.tolist(), part.top_values.tolist(), strict=True
            )
        ]
        result.top_logprobs.extend([*[None] * nothing, *tops])
    return result


def _groups(prompts: Prompts, engine: Engine) -> Iterator[list[int]]:
    """Non-empty prompts that go through together: within table rows, BATCH_TOKENS and free slots."""
    room = min(BATCH_TOKENS, engine.free_slots)
    group: list[int] = []
    rows = 0
    for at, ids in enumerate(prompts):
        if not ids:
            continue
        if group and (len(group) == Engine.SCORING_ROWS or rows + len(ids) > room):
            yield group
            group, rows = [], 0
        group.append(at)
        rows += len(ids)
    if group:
        yield group


def _chunks(prompts: Prompts, chunk_size: int | None) -> Iterator[tuple[int, int]]:
    """(start, stop) positions of each forward."""
    longest = max((len(ids) for ids in prompts), default=0)
    size = chunk_size or max(longest, 1)
    return ((start, start + size) for start in range(0, longest, size))
