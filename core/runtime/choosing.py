"""Tokens for the rows of a forward, where its logits are, and -1 where nothing can be chosen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, LogitsError
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


class Choosable:
    """Which ids of a head may be chosen: a head that is padded has more than its tokenizer.

    What lies behind the last one is cut off, for nothing; holes before it are written over.

    Args:
        ids: that may be; those that the head lacks do not count.
        vocab_size: V, ids of the head.

    Raises:
        InputError: the head has none of them.
    """

    def __init__(self, ids: Iterable[int], vocab_size: int) -> None:
        known = {token_id for token_id in ids if 0 <= token_id < vocab_size}
        if not known:
            raise InputError(
                f"no id of the tokenizer is below {vocab_size}, the size of this model's vocabulary; "
                "put the model's own tokenizer beside the checkpoint"
            )
        self._end = max(known) + 1
        self._missing = [token_id for token_id in range(self._end) if token_id not in known]
        self._holes = torch.tensor(self._missing, dtype=torch.int64)

    def among(self, logits: Tensor) -> Tensor:
        """Logits of the ids up to the last that may be chosen, -inf for those that may not.

        Args:
            logits: (R, V), or of a draft that pads its head otherwise; written to at the holes.

        Returns:
            (R, V'), a view.
        """
        inside = logits[:, : self._end]
        if self._missing:
            self._holes = self._holes.to(logits.device)
            holes = self._holes[: bisect_left(self._missing, inside.shape[1])]
            with torch.inference_mode():
                inside.index_fill_(1, holes, -torch.inf)
        return inside


def choices_of(requests: Iterable[Request], step: Step) -> list[Choice]:
    """Of each row that samples; a row after proposed tokens as if they stood."""
    pairs = zip(requests, step.samples, strict=True)
    return [
        Choice(request.params, request.num_output + at)
        for request, count in pairs
        for at in range(count)
    ]


def choose(
    output: LogitsProcessorOutput, choices: Sequence[Choice], choosable: Choosable | None = None
) -> list[int]:
    """A token for each row of the logits.

    Args:
        output: of a forward; nobody else reads its logits.
        choices: of each row.
        choosable: ids that may be chosen; None for all.
    """
    logits = output.next_token_logits
    assert logits is not None
    if choosable is not None:
        logits = choosable.among(logits)
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
