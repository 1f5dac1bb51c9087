"""generate: requests through the engine, whole or piece by piece."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ..errors import InputError
from .engine import Engine
from .request import FinishReason, Request, SamplingParams
from .speculative.state import SpeculationReport


class GenerateOptions(TypedDict, total=False):
    """Options of ``generate``; each may be left out.

    Keys:
        temperature: 0 takes the likeliest token; otherwise logits are divided by it.
        top_k: choose among the k likeliest tokens; 0 for all.
        top_p: choose among the smallest set of likeliest tokens with this mass.
        seed: of the random numbers; each prompt draws its own when left out.
        stop: texts that end the output, which does not contain them.
        stop_token_ids: ids that end the output, beside the model's own.
        ignore_eos: go on past the model's own end ids.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: int | Sequence[int]
    ignore_eos: bool


def sampling_params(max_new_tokens: int | None, options: Mapping[str, Any]) -> SamplingParams:
    """What ``generate`` is given, checked.

    Raises:
        InputError: an option that there is not, or one out of its range.
    """
    known = GenerateOptions.__annotations__
    unknown = [repr(name) for name in options if name not in known]
    if unknown:
        raise InputError(
            f"generate has no option {', '.join(unknown)}; it has max_new_tokens, stream, draft, "
            f"draft_tokens, {', '.join(known)}"
        )
    return SamplingParams(max_new_tokens, **options)


@dataclass(frozen=True)
class GenerateResult:
    """What came of one prompt.

    Args:
        token_ids: new tokens, a stop id that ended them included.
        text: their text, without stop ids and stop strings; empty without a tokenizer.
        finish_reason: ``stop``, ``length`` or ``abort``.
        prompt_token_ids: the prompt as tokens.
        cached_tokens: tokens of the prompt that were in the prefix cache.
        speculation: what the draft was worth; None without one.
    """

    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    prompt_token_ids: list[int]
    cached_tokens: int = 0
    speculation: SpeculationReport | None = None


@dataclass(frozen=True)
class StreamChunk:
    """What came of one prompt since its last chunk.

    Args:
        index: which prompt of the batch.
        token_ids: new tokens.
        text: text that is settled now; pieces put together are the result's text.
        finish_reason: set in a prompt's last chunk.
        speculation: what the draft was worth; in a prompt's last chunk, None without a draft.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None
    speculation: SpeculationReport | None = None


def generate_all(engine: Engine, requests: Sequence[Request]) -> list[GenerateResult]:
    """Run requests to their ends, beside whatever else is under way."""
    submitted = _Submitted(engine, requests)
    try:
        while not submitted.done:
            engine.step()
            submitted.raise_for_errors()
    except BaseException:
        submitted.abort()
        raise
    return [result_of(request) for request in requests]


def generate_stream(engine: Engine, requests: Sequence[Request]) -> Iterator[StreamChunk]:
    """Run requests and give their pieces as they come.

    Requests are queued now, and refused now if they cannot be served.
    """
    return Stream(_Submitted(engine, requests))


class Stream(Iterator[StreamChunk]):
    """Pieces as they come. Closed, or let go of, it aborts what is unfinished, read or not.

    Args:
        submitted: the requests.
    """

    def __init__(self, submitted: _Submitted) -> None:
        """Nothing is computed before the first piece is asked for."""
        self._pieces = _pieces(submitted)
        self._end = weakref.finalize(self, submitted.abort)

    def __next__(self) -> StreamChunk:
        """The next piece."""
        return next(self._pieces)

    def close(self) -> None:
        """Abort what is unfinished."""
        self._pieces.close()
        self._end()


def result_of(request: Request) -> GenerateResult:
    """The result of a finished request."""
    assert request.finish_reason is not None
    return GenerateResult(
        request.output_ids,
        request.output.text,
        request.finish_reason,
        request.prompt_ids,
        request.cached_tokens or 0,
        _report(request),
    )


def _report(request: Request) -> SpeculationReport | None:
    return None if request.speculation is None else request.speculation.report


class _Submitted:
    """Requests that were queued together; all or none are."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.engine, self.requests = engine, requests
        try:
            for request in requests:
                engine.add(request)
        except BaseException:
            self.abort()
            raise

    @property
    def done(self) -> bool:
        return all(request.finished for request in self.requests)

    def raise_for_errors(self) -> None:
        for request in self.requests:
            if request.error is not None:
                raise request.error

    def abort(self) -> None:
        for request in self.requests:
            if request.request_id >= 0:
                self.engine.abort(request)


def _pieces(submitted: _Submitted) -> Generator[StreamChunk, None, None]:
    taken = [0] * len(submitted.requests)
    told: set[int] = set()
    try:
        while len(told) < len(submitted.requests):
            if not submitted.done:
                submitted.engine.step()
            submitted.raise_for_errors()
            for index, request in enumerate(submitted.requests):
                if index in told:
                    continue
                ids = request.output_ids[taken[index] :]
                if not ids and not request.finished:
                    continue
                taken[index] += len(ids)
                if request.finished:
                    told.add(index)
                end = _report(request) if request.finished else None
                text = request.output.take()
                yield StreamChunk(index, ids, text, request.finish_reason, end)
    finally:
        submitted.abort()
