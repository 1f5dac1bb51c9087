"""generate: requests through the engine, whole or piece by piece."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ..errors import InputError
from .engine import Engine, OfOneProcess
from .request import FinishReason, Request, SamplingParams
from .speculative.state import SpeculationReport


class GenerateOptions(TypedDict, total=False):
    """Options of ``generate``; each may be left out.

    Keys:
        temperature: 0 takes the likeliest token; otherwise logits are divided by it.
        top_k: choose among the k likeliest tokens; 0 for all.
        top_p: choose among the smallest set of likeliest tokens with this mass.
        seed: of the random numbers; each prompt draws its own when left out.
        stop: texts that end the output, which does not contain them; special tokens are matched too.
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
        text: what they add to the prompt's text, without special tokens, stop ids and stop strings;
            empty without a tokenizer.
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
    """Queue requests and run them to their ends, beside whatever else is under way."""

    def over() -> bool:
        return any(each.error for each in requests) or all(each.finished for each in requests)

    try:
        engine.add_all(requests)
        with engine.driven(over):
            raise_for_errors(requests)
    except BaseException:
        engine.abandon(requests)
        raise
    return [result_of(request) for request in requests]


def raise_for_errors(requests: Sequence[Request]) -> None:
    """Raise what ended one of them, if anything did."""
    for request in requests:
        if request.error is not None:
            raise request.error


class Stream(OfOneProcess, Iterator[StreamChunk]):
    """Pieces as they come. Closed, or let go of, it aborts what is unfinished, read or not.

    Threads that read one stream share its pieces.

    Args:
        engine: of the requests.
        requests: queued now, and refused now if they cannot be served.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        """Nothing is computed before the first piece is asked for."""
        self._engine = engine
        self._open = dict(enumerate(requests))
        self._taken = [0] * len(requests)
        self._chunks: deque[StreamChunk] = deque()
        weakref.finalize(self, engine.abandon_later, requests)
        engine.add_all(requests)

    def __next__(self) -> StreamChunk:
        """The next piece."""
        while True:
            try:
                return self._chunks.popleft()
            except IndexError:
                if not self._open:
                    raise StopIteration from None
            try:
                with self._engine.driven(self._has_moved):
                    raise_for_errors(list(self._open.values()))
                    self._collect()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Abort what is unfinished."""
        left, self._open = self._open, {}
        self._engine.abandon(list(left.values()))
        self._chunks.clear()

    def _has_moved(self) -> bool:
        return (
            bool(self._chunks)
            or not self._open
            or any(
                each.finished or each.error or each.num_output > self._taken[at]
                for at, each in list(self._open.items())
            )
        )

    def _collect(self) -> None:
        """Make pieces of what is new; with the turn."""
        for index, request in list(self._open.items()):
            ids = request.output_ids[self._taken[index] :]
            if not ids and not request.finished:
                continue
            self._taken[index] += len(ids)
            end = _report(request) if request.finished else None
            text = request.output.take()
            self._chunks.append(StreamChunk(index, ids, text, request.finish_reason, end))
            if request.finished:
                self._open.pop(index, None)


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
