"""One request: what is asked, how far it is, what came out."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from ..errors import InputError
from .detokenize import PieceDecoder
from .prefix_tree import PrefixNode
from .speculative.state import Speculation
from .stopping import OutputText

FinishReason = Literal["stop", "length", "abort"]
"""A stop id or stop string came; the token limit was reached; the caller gave up."""

MAX_INT64 = 2**63 - 1
"""Numbers go to other processes as int64, so none is larger, however many processes there are."""


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends.

    Args:
        max_new_tokens: tokens to generate at most; None for as many as context and pool hold.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: choose among the k likeliest tokens; 0 for all.
        top_p: choose among the smallest set of likeliest tokens with at least this mass.
        seed: of this request's random numbers, below 2^63; None draws one (see ``seeded``).
        stop: texts that end the output; the output stops before them. One string or several.
        stop_token_ids: ids that end the output, beside the model's own end ids.
        ignore_eos: generate past the model's end ids.

    Raises:
        InputError: a value outside its range.
    """

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check ranges; single values become tuples."""
        if self.max_new_tokens is not None:
            self._set("max_new_tokens", integer("max_new_tokens", self.max_new_tokens, 1))
        self._set("temperature", number("temperature", self.temperature, 0.0, math.inf))
        self._set("top_k", integer("top_k", self.top_k, 0))
        self._set("top_p", number("top_p", self.top_p, 0.0, 1.0))
        if self.top_p == 0:
            raise InputError("top_p=0.0 keeps no token; give a mass in (0, 1], or top_k=1")
        if self.seed is not None:
            self._set("seed", integer("seed", self.seed, 0, MAX_INT64))
        self._set("stop", _stop_strings(self.stop))
        ids: Any = () if self.stop_token_ids is None else self.stop_token_ids
        ids = ids if isinstance(ids, Iterable) else (ids,)
        self._set("stop_token_ids", tuple(integer("stop_token_ids", each, 0) for each in ids))

    def seeded(self) -> SamplingParams:
        """These params with a seed: their own, or a fresh one. Ranks must share one."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class RequestState(Enum):
    """Where a request is."""

    WAITING = "waiting"
    """Holds no slot."""
    RUNNING = "running"
    """Holds slots; part of the steps."""
    FINISHED = "finished"
    """Holds no slot any more."""


class Request:
    """A prompt on its way through the scheduler.

    Args:
        prompt_ids: token ids, at least one.
        params: sampling and stopping; a missing seed is drawn here.
        eos_ids: the model's end ids.
        decoder: the tokenizer; None leaves the output without text.
        vocab_size: ids must be below it; None checks only that they are not negative.

    Attributes:
        output: the new tokens as text, and whether they have come to an end.
        error: why it was aborted, where nobody asked for that.
        request_id: given by the scheduler, in order of arrival.
        tokens: prompt and output ids, one list.
        limit: new tokens at most; the scheduler narrows it to what context and pool hold.
        computed: leading tokens whose keys and values are in the cache.
        known_len: length by which its first keys turn, where rotation depends on that: its prompt's,
            or more where they were made again.
        slots: slot of each position, computed ones and those reserved for the prompt.
        lease: what it has locked of the prefix cache; None while it holds no slot.
        borrowed: leading tokens that came from the prefix cache when it was admitted last.
        cached_tokens: tokens of the prompt that need not be computed at all; None before it is
            admitted first.
        req_pool_index: row of the slot table; -1 while not running.
        put_back_at: new tokens there were when its slots were last wanted for scoring; -1 before.
        speculation: what a draft model does for it; None without one.

    Raises:
        InputError: an empty prompt, an id (also one to stop at) that is no token, stop strings
            without a tokenizer.
    """

    __slots__ = (
        "borrowed",
        "cached_tokens",
        "computed",
        "error",
        "finish_reason",
        "known_len",
        "lease",
        "limit",
        "num_prompt",
        "output",
        "params",
        "put_back_at",
        "req_pool_index",
        "request_id",
        "slots",
        "speculation",
        "state",
        "tokens",
    )

    def __init__(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        eos_ids: Iterable[int] = (),
        decoder: PieceDecoder | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Not yet known to a scheduler."""
        self.tokens = check_prompt(prompt_ids, vocab_size)
        self.num_prompt = self.known_len = len(self.tokens)
        self.params = params.seeded()
        if vocab_size is not None:
            for stop_id in params.stop_token_ids:
                integer("stop_token_ids", stop_id, 0, vocab_size - 1)
        ends = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_ids)
        self.output = OutputText(ends, params.stop, decoder, self.tokens)
        self.limit = params.max_new_tokens
        self.request_id = -1
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.req_pool_index = self.put_back_at = -1
        self.slots: list[int] = []
        self.lease: PrefixNode | None = None
        self.computed = self.borrowed = 0
        self.cached_tokens: int | None = None
        self.speculation: Speculation | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt."""
        return self.tokens[: self.num_prompt]

    @property
    def output_ids(self) -> list[int]:
        """New tokens so far, a stop id that ended them included."""
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        """How many new tokens there are."""
        return len(self.tokens) - self.num_prompt

    @property
    def seed(self) -> int:
        """Seed of this request's random numbers."""
        assert self.params.seed is not None
        return self.params.seed

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def decodes(self) -> bool:
        """Whether its next row is that of its last output, alone."""
        return len(self.tokens) - self.computed == 1 and self.num_output > 0

    @property
    def proposal(self) -> Sequence[int]:
        """Tokens that a draft expects to come."""
        return () if self.speculation is None else self.speculation.proposal

    @property
    def reads_states(self) -> bool:
        """Whether its draft wants the target's hidden states of all its rows."""
        return self.speculation is not None and self.speculation.drafter.reads_states

    def advance(self, known: int, new: Sequence[int], proposed: int) -> FinishReason | None:
        """Take what a step gave; say whether it ends the request, and why.

        Args:
            known: of its tokens, how many were computed.
            new: sampled tokens that stand; all but the last one were proposed, hence computed.
            proposed: how many tokens were proposed.
        """
        before = len(self.tokens)
        reason: FinishReason | None = None
        for token_id in new:
            reason = self.accept(token_id)
            if reason:
                break
        accepted = min(len(self.tokens) - before, max(0, len(new) - 1))
        self.computed += known + accepted
        if self.speculation is not None:
            self.speculation.settle(proposed, accepted)
        return reason

    def accept(self, token_id: int) -> FinishReason | None:
        """Append a sampled token; say whether it ends the request, and why."""
        self.tokens.append(token_id)
        if self.output.push(token_id):
            return "stop"
        if self.limit is not None and len(self.tokens) - self.num_prompt >= self.limit:
            return "stop" if self.output.close() else "length"
        return None

    def finish(self, reason: FinishReason) -> None:
        """Mark the request finished and settle its text."""
        self.state, self.finish_reason = RequestState.FINISHED, reason
        self.output.close()

    def __repr__(self) -> str:
        """Number, state and sizes."""
        return (
            f"<Request {self.request_id} {self.state.value}: {self.num_prompt} prompt + "
            f"{self.num_output} new tokens, {self.computed} computed>"
        )


def check_prompt(ids: Any, vocab_size: int | None = None) -> list[int]:
    """A prompt as a list of ints.

    Args:
        ids: list, tuple, array or one-dimensional tensor of token ids.
        vocab_size: ids must be below it; None for no such check.

    Raises:
        InputError: no id, something that is no integer, or an id outside the vocabulary.
    """
    if isinstance(ids, str | bytes):
        raise InputError(f"a prompt of token ids, not {type(ids).__name__}; encode the text first")
    to_list = getattr(ids, "tolist", None)
    if to_list is not None:
        ids = to_list()
    if not isinstance(ids, Iterable):
        raise InputError(f"a prompt is a sequence of token ids, not {ids!r}")
    tokens = [integer(f"prompt id {at}", value, 0) for at, value in enumerate(ids)]
    if not tokens:
        raise InputError("empty prompt: 0 tokens; give at least one, such as the model's bos id")
    if vocab_size is not None and max(tokens) >= vocab_size:
        at = next(at for at, token in enumerate(tokens) if token >= vocab_size)
        raise InputError(
            f"prompt id {at} is {tokens[at]}, outside the vocabulary of {vocab_size}; "
            "encode the prompt with this model's tokenizer; a token that was added to it needs rows "
            "of the embedding and the head too"
        )
    return tokens


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within its range.

    Raises:
        InputError: something else; names it, its value and the range.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least or (most is not None and found > most):
        span = f">= {least}" if most is None else f"in {least}…{most}"
        raise InputError(f"{name}={value!r} must be an integer {span}")
    return found


def number(name: str, value: Any, least: float, most: float) -> float:
    """A finite number within its range.

    Raises:
        InputError: something else; names it, its value and the range.
    """
    try:
        found = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most or math.isinf(found):
        span = f">= {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise InputError(f"{name}={value!r} must be a finite number {span}")
    return found


def _stop_strings(stop: Any) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(texts, Iterable) or not all(isinstance(t, str) and t for t in texts):
        raise InputError(f"stop={stop!r} must hold non-empty strings; leave it out for none")
    return tuple(texts)
