"""Engine: prompts and requests over one KV pool, on every rank.

Two kinds of work share the pool. *Requests* generate: the scheduler batches them step by step.
*Scoring* computes prompts once (logits, log-probabilities, vectors) and gives its slots back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..config import ModelConfig
from ..errors import InputError, LogitsError
from ..forward import ForwardMode
from ..layers import LogitsProcessorOutput
from .executor import Executor
from .request import Request
from .runner import PoolSize, Runner, Wanted
from .sampling import sample
from .scheduler import Scheduler, Step
from .slots import SlotAllocator

BATCH_TOKENS = 2048
"""Rows of one forward at most, unless more requests than that decode together."""


@dataclass(frozen=True)
class EngineLimits:
    """What an engine may have under way.

    Args:
        pool: room of the KV pool.
        max_requests: generating requests at once.
        prefill_chunk: prompt tokens of one request in one forward; None for BATCH_TOKENS.
    """

    pool: PoolSize
    max_requests: int
    prefill_chunk: int | None = None


class Engine:
    """Runs steps on all local ranks.

    Args:
        executor: the ranks.
        runners: one for each local rank.
        config: the model.
        limits: sizes.

    Attributes:
        scheduler: requests waiting and running.
    """

    SCORING_ROWS: ClassVar[int] = 32
    """Rows of the slot table kept for scoring: prompts of one scoring forward."""

    def __init__(
        self,
        executor: Executor,
        runners: Sequence[Runner],
        config: ModelConfig,
        limits: EngineLimits,
    ) -> None:
        self.executor, self.config, self.limits = executor, config, limits
        self._runners = dict(zip(executor.ranks, runners, strict=True))
        self._slots = SlotAllocator(limits.pool.slots)
        self.scheduler = Scheduler(
            self._slots,
            limits.max_requests,
            limits.pool.context,
            limits.prefill_chunk,
            max(BATCH_TOKENS, limits.max_requests),
        )

    @property
    def runners(self) -> tuple[Runner, ...]:
        """One for each local rank."""
        return tuple(self._runners.values())

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return self._slots.available

    def step(self) -> list[Request]:
        """One forward over the requests under way; those that got a token from it.

        A forward that fails counts for nothing: the same step is planned again. A request whose
        logits are unusable ends, with the error in ``request.error``; the others go on.
        """
        step = self.scheduler.next_step()
        if step is None:
            return []
        sampling = self.scheduler.sampled(step)
        try:
            output = self.forward(step, Wanted(step.sample_rows))
            tokens = self._sample(output, sampling)
        except BaseException:
            self.scheduler.cancel_step(step)
            raise
        self.scheduler.finish_step(step, tokens)
        return sampling

    def forward(self, step: Step, wanted: Wanted) -> LogitsProcessorOutput:
        """One forward on every local rank; the first one's output (they are equal)."""
        with torch.inference_mode():
            return self.executor.run(lambda rank: self._runners[rank].forward(step, wanted))[0]

    @contextmanager
    def scoring(self, lengths: Sequence[int]) -> Iterator[ScoringPass]:
        """Slots and table rows for prompts that are computed once.

        Args:
            lengths: tokens of each prompt, at most SCORING_ROWS prompts.

        Raises:
            InputError: a prompt longer than the context.
            CapacityError: fewer slots are free.
        """
        context = self.limits.pool.context
        for at, length in enumerate(lengths):
            if length > context:
                raise InputError(
                    f"prompt {at} has {length} tokens, more than the context of {context}; "
                    "shorten it"
                )
        slots: list[list[int]] = []
        try:
            for length in lengths:
                slots.append(self._slots.alloc(length))
            yield ScoringPass(self, slots)
        finally:
            for taken in slots:
                self._slots.free(taken)

    def _sample(self, output: LogitsProcessorOutput, requests: Sequence[Request]) -> list[int]:
        if not requests:
            return []
        logits = output.next_token_logits
        assert logits is not None
        params = [request.params for request in requests]
        steps = [request.num_output for request in requests]
        names = [f"request {request.request_id}" for request in requests]
        try:
            tokens = sample(logits, params, steps, names)
        except LogitsError as error:
            for row in error.rows:
                requests[row].error = error
                self.scheduler.abort(requests[row])
            spoilt = torch.tensor(error.rows, device=logits.device)
            tokens = sample(logits.index_fill(0, spoilt, 0), params, steps, names)
        return self.executor.agree(tokens)


class ScoringPass:
    """Prompts that hold slots and are computed chunk by chunk.

    Args:
        engine: runs the forwards.
        slots: of each prompt.
    """

    def __init__(self, engine: Engine, slots: Sequence[Sequence[int]]) -> None:
        self._engine, self._slots = engine, slots
        self._first_row = engine.limits.max_requests

    def forward(
        self, prompts: Sequence[Sequence[int]], start: int, stop: int, wanted: Wanted
    ) -> LogitsProcessorOutput:
        """Rows start to stop of every prompt that has some, in prompt order."""
        step = Step(ForwardMode.EXTEND)
        for at, (ids, slots) in enumerate(zip(prompts, self._slots, strict=True)):
            part = ids[start:stop]
            if not part:
                continue
            step.request_ids.append(at)
            step.req_pool_indices.append(self._first_row + at)
            step.prefix_lens.append(start)
            step.extend_lens.append(len(part))
            step.known_lens += [len(ids)] * len(part)
            step.samples.append(start + len(part) == len(ids))
            step.input_ids += part
            step.new_slots += slots[start:stop]
        return self._engine.forward(step, wanted)
