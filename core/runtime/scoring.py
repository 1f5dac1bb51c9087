"""Prompts in, logits, log-probabilities, vectors or scores out: each prompt computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..errors import InputError
from ..forward import PoolingRequest
from ..layers import InputLogprobs, LogitsProcessorOutput
from .engine import BATCH_TOKENS, Engine
from .runner import Logprobs, Wanted
from .scoring_pass import ScoringPass
from .sharing import borrowable

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


@dataclass(frozen=True)
class PromptOutput:
    """What one forward gives for a prompt of T tokens.

    Args:
        logits: (T, V) float32, or float64 when the model runs in float64.
        aux_hidden_states: (T, D) each, in the model's dtype and the order asked for.
    """

    logits: Tensor
    aux_hidden_states: tuple[Tensor, ...] = ()


def prompt_logits(engine: Engine, prompts: Prompts, chunk_size: int | None) -> list[Tensor]:
    """(T, V) logits of each prompt; (0, V) for an empty one."""
    return [each.logits for each in prompt_outputs(engine, prompts, chunk_size)]


def prompt_outputs(engine: Engine, prompts: Prompts, chunk_size: int | None) -> list[PromptOutput]:
    """Logits and hidden states of each prompt; of no rows for an empty one."""
    module = engine.runners[0].module
    wide = torch.float64 if module.dtype is torch.float64 else torch.float32
    layers = module.aux_layers
    aux = [torch.empty(0, engine.config.hidden_size, dtype=module.dtype)] * len(layers)
    nothing = [torch.empty(0, engine.config.vocab_size, dtype=wide), *aux]
    pieces: list[list[list[Tensor]]] = [[[] for _ in nothing] for _ in prompts]
    for group in _groups(prompts, engine):
        texts = [prompts[at] for at in group]
        with engine.scoring(texts, [0] * len(texts)) as scoring:
            if module.aux_layers != layers:
                break  # another thread has set others
            for start, stop in _chunks(texts, chunk_size, scoring):
                for members, output in scoring.forward(start, stop, lambda _: Wanted()):
                    assert output.next_token_logits is not None
                    lens = [len(texts[at][start:stop]) for at in members]
                    columns = (output.next_token_logits, *output.aux_hidden_states)
                    for number, column in enumerate(columns):
                        for at, part in zip(members, torch.split(column, lens), strict=True):
                            pieces[group[at]][number].append(part)
    if module.aux_layers != layers:
        return prompt_outputs(engine, prompts, chunk_size)
    # Copies: what a forward returns is a view, and an inference tensor.
    found = [
        [torch.cat(parts or [none]) for parts, none in zip(each, nothing, strict=True)]
        for each in pieces
    ]
    return [PromptOutput(logits, tuple(states)) for logits, *states in found]


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
    with engine.scoring([ids], [min(first, count) - 1]) as scoring:
        for begin, end in _chunks([ids], chunk_size, scoring):
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

            _, output = scoring.forward(begin, end, want)[0]
            assert output.input_logprobs is not None
            parts.append(output.input_logprobs)
    return _joined(list(ids), first, top_k, parts)


def prompt_pooled(
    engine: Engine,
    prompts: Prompts,
    dimensions: int | None,
    normalize: bool,
    chunk_size: int | None,
    skip_rows: int = 0,
) -> Tensor:
    """(R, D) vectors, or (R, labels) scores of a classifier, of the prompts' pooled rows.

    A long prompt may be computed in chunks where pooling allows it; the first ``skip_rows`` of each
    are left out where all rows are pooled.
    """

    def want(ending: Sequence[int], lens: Sequence[int]) -> Wanted:
        return Wanted(pooling=PoolingRequest(tuple(ending), dimensions, normalize, skip_rows))

    return _at_the_ends(engine, prompts, chunk_size, want, lambda output: output.pooled)


def prompt_label_logits(
    engine: Engine, prompts: Prompts, labels: Sequence[int], chunk_size: int | None
) -> Tensor:
    """(R, labels) logits of some tokens as what comes after each prompt."""

    def want(ending: Sequence[int], lens: Sequence[int]) -> Wanted:
        stops = list(accumulate(lens))
        return Wanted(sample_rows=[stops[n] - 1 for n in ending])

    def take(output: LogitsProcessorOutput) -> Tensor | None:
        logits = output.next_token_logits
        return None if logits is None else logits[:, list(labels)]

    return _at_the_ends(engine, prompts, chunk_size, want, take)


def prompt_steps(engine: Engine, prompts: Prompts, end: int) -> list[Tensor]:
    """(S, labels) scores of each prompt at its S tokens ``end``."""
    _refuse_empty(prompts)
    return [_steps(engine, ids, end) for ids in prompts]


def _steps(engine: Engine, ids: Sequence[int], end: int) -> Tensor:
    """Of one prompt: a chunk ends wherever a step does, so each token is computed once."""
    stops = [at + 1 for at, token in enumerate(ids) if token == end]
    rows = [torch.empty(0, engine.runners[0].module.pooled_width)]
    with engine.scoring([ids], [0]) as scoring:
        for start, stop in pairwise((0, *stops)):

            def want(members: Sequence[int]) -> Wanted:
                return Wanted(pooling=PoolingRequest(tuple(range(len(members))), None, False))

            for _, output in scoring.forward(start, stop, want):
                assert output.pooled is not None
                rows.append(output.pooled)
    return torch.cat(rows)


def _at_the_ends(
    engine: Engine,
    prompts: Prompts,
    chunk_size: int | None,
    want: Callable[[Sequence[int], Sequence[int]], Wanted],
    take: Callable[[LogitsProcessorOutput], Tensor | None],
) -> Tensor:
    """One row for each prompt, from the forward in which it ends.

    Args:
        engine, prompts, chunk_size: as everywhere here.
        want: what is wanted of a forward, given which of its prompts end and the rows of each.
        take: the rows of those that end.
    """
    _refuse_empty(prompts)
    rows: dict[int, Tensor] = {}
    for group in _groups(prompts, engine):
        texts = [prompts[at] for at in group]
        most = [borrowable(engine.runners[0].module, ids) for ids in texts]
        with engine.scoring(texts, most) as scoring:
            for start, stop in _chunks(texts, chunk_size, scoring):

                def wanted(
                    members: Sequence[int],
                    texts: Prompts = texts,
                    start: int = start,
                    stop: int = stop,
                    scoring: ScoringPass = scoring,
                ) -> Wanted:
                    ending = [n for n, at in enumerate(members) if len(texts[at]) <= stop]
                    return want(ending, scoring.row_counts(members, start, stop))

                for members, output in scoring.forward(start, stop, wanted):
                    found = take(output)
                    assert found is not None
                    done = [group[at] for at in members if len(texts[at]) <= stop]
                    rows.update(zip(done, found.unbind(0), strict=True))
    return torch.stack([rows[at] for at in range(len(prompts))])


def _refuse_empty(prompts: Prompts) -> None:
    for at, ids in enumerate(prompts):
        if not ids:
            raise InputError(f"prompt {at} is empty: 0 tokens have no last row; leave it out")


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
    room = min(BATCH_TOKENS, engine.spare_slots)
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


def _chunks(
    prompts: Prompts, chunk_size: int | None, scoring: ScoringPass
) -> Iterator[tuple[int, int]]:
    """(start, stop) positions of each forward."""
    longest = max(len(ids) for ids in prompts)
    size = chunk_size or longest
    return ((start, start + size) for start in range(scoring.start, longest, size))
