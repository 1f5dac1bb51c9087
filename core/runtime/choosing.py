"""Tokens for the rows of a forward, where its logits are, and -1 where nothing can be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from ..errors import LogitsError
from ..layers import LogitsProcessorOutput
from .request import Request, SamplingParams
from .sampling import sample
from .scheduler import Scheduler
from .speculative.verifying import UNUSABLE, verified
from .step import Step


class Choice(NamedTuple):
    """How one row's token is chosen.

    Args:
        params: of its request.
        place: how many new tokens the request has before it.
    """

    params: SamplingParams
    place: int


def choices_of(requests: Iterable[Request], step: Step) -> list[Choice]:
    """Of each row that samples; a row after proposed tokens as if they stood."""
    pairs = zip(requests, step.samples, strict=True)
    return [
        Choice(request.params, request.num_output + at)
        for request, count in pairs
        for at in range(count)
    ]


def choose(output: LogitsProcessorOutput, choices: Sequence[Choice]) -> list[int]:
    """A token for each row of the logits."""
    logits = output.next_token_logits
    assert logits is not None
    params, places = [each.params for each in choices], [each.place for each in choices]
    try:
        return sample(logits, params, places)
    except LogitsError as error:
        rows = torch.tensor(error.rows, device=logits.device)
        tokens = sample(logits.index_fill(0, rows, 0), params, places)
        return [UNUSABLE if at in error.rows else token for at, token in enumerate(tokens)]


def end_unusable(
    scheduler: Scheduler, step: Step, tokens: Sequence[int], requests: Sequence[Request]
) -> None:
    """End the requests from whose logits nothing can be chosen, with one error for all of them.

    Guesses may hold anything, and NaN in their values reaches rows before them: weighed by 0 it is
    NaN. A request that had some is not ended, it goes on without.
    """
    token = iter(tokens)
    each = zip(requests, step.samples, step.proposals, strict=True)
    sampled = [(request, list(islice(token, n)), proposal) for request, n, proposal in each]
    found = [
        (request, bool(proposal))
        for request, new, proposal in sampled
        if new and verified(proposal, new)[-1] == UNUSABLE
    ]
    for request in [request for request, guessed in found if guessed]:
        assert request.speculation is not None
        request.speculation.drafter.give_up(request)
    spoilt = [request for request, guessed in found if not guessed]
    if not spoilt:
        return
    rows = tuple(at for at, request in enumerate(requests) if request in spoilt)
    error = LogitsError(rows, tuple(f"request {request.request_id}" for request in spoilt))
    for request in spoilt:
        request.error = error
        scheduler.abort(request)
    # What is wrong may be in keys that they borrowed, or left to others when a chunk was through.
    scheduler.cache.clear()
