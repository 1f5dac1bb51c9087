"""Engine: prompts and requests over one KV pool, on every rank.

Two kinds of work share the pool. *Requests* generate: the scheduler batches them step by step.
*Scoring* computes prompts once (logits, log-probabilities, vectors) and gives its slots back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch

from ..config import ModelConfig
from ..errors import InputError, LogitsError
from ..forward import ForwardMode
from ..layers import LogitsProcessorOutput
from .executor import Executor
from .lanes import Lane, cancel_steps, next_steps
from .pipeline import StageEvent, StageRunner, from_tensors, to_tensors
from .request import Request
from .runner import PoolSize, Runner, Wanted
from .sampling import sample
from .scheduler import Scheduler, Step, idle_step

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
        stages: one for each local rank.
        config: the model.
        limits: sizes; of the pool and requests of each attention group.

    Attributes:
        lanes: requests waiting and running, of each attention group.
    """

    SCORING_ROWS: ClassVar[int] = 32
    """Rows of the slot table kept for scoring: prompts of one scoring forward in each group."""

    def __init__(
        self,
        executor: Executor,
        stages: Sequence[StageRunner],
        config: ModelConfig,
        limits: EngineLimits,
    ) -> None:
        self.executor, self.config, self.limits = executor, config, limits
        self._stages = dict(zip(executor.ranks, stages, strict=True))
        ids = count()
        self.lanes = tuple(
            Lane(
                limits.pool.slots,
                limits.max_requests,
                limits.pool.context,
                limits.prefill_chunk,
                max(BATCH_TOKENS, limits.max_requests),
                ids,
            )
            for _ in range(executor.topology.attn_dp)
        )

    @property
    def runners(self) -> tuple[Runner, ...]:
        """One for each local rank."""
        return tuple(stage.runner for stage in self._stages.values())

    @property
    def free_slots(self) -> int:
        """Slots nobody holds, in the attention group that has fewest."""
        return min(lane.slots.available for lane in self.lanes)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return any(lane.scheduler.has_work for lane in self.lanes)

    def add(self, request: Request) -> Request:
        """Queue a request in the attention group with the least to do.

        Raises:
            InputError, CapacityError: as ``Scheduler.add``.
            SpoiltWeightsError: writing the weights ended half-way.
        """
        self.require_weights()
        return min(self.lanes, key=lambda lane: lane.load).scheduler.add(request)

    def require_weights(self) -> None:
        """Nothing, when every local rank's weights are whole.

        Raises:
            SpoiltWeightsError: writing them ended half-way.
        """
        for runner in self.runners:
            runner.module.weight_state.require()

    def abort(self, request: Request) -> None:
        """End a request now; its slots are free. One that has finished stays as it is.

        Raises:
            InputError: the request was never added here.
        """
        home = next((lane for lane in self.lanes if lane.holds(request)), self.lanes[0])
        home.scheduler.abort(request)

    def step(self) -> list[Request]:
        """One forward over the requests under way; those that got a token from it.

        A forward that fails counts for nothing: the same step is planned again. A request whose
        logits are unusable ends, with the error in ``request.error``; the others go on.
        """
        steps = next_steps(self.lanes)
        if steps is None:
            return []
        busy = [(at, lane) for at, lane in enumerate(self.lanes) if steps[at].input_ids]
        sampling: list[list[Request]] = [[] for _ in self.lanes]
        try:
            for at, lane in busy:
                sampling[at] = lane.scheduler.sampled(steps[at])
            wanted = [Wanted(step.sample_rows) for step in steps]
            tokens = self._sample(self._run(steps, wanted), sampling)
        except BaseException:
            cancel_steps(self.lanes, steps)
            raise
        for at, lane in busy:
            lane.scheduler.finish_step(steps[at], tokens[at])
        return [request for requests in sampling for request in requests]

    def forward(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput]:
        """One forward on every rank; the output of each attention group, on every process.

        Args:
            steps: of each group.
            wanted: of each group; log-probabilities are wanted by all or none, pooled rows too.
        """
        outputs = self._run(steps, wanted)
        with torch.inference_mode():
            found = self.executor.results([to_tensors(output) for output in outputs])
            return [from_tensors(tensors) for tensors in found]

    @contextmanager
    def recording(self) -> Iterator[list[StageEvent]]:
        """Collect what the local ranks' pipeline stages do, in the order it happens."""
        log: list[StageEvent] = []
        with ExitStack() as stack:
            for stage in self._stages.values():
                stack.enter_context(stage.recording(log))
            yield log

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
            for at, length in enumerate(lengths):
                slots.append(self.lanes[at % len(self.lanes)].slots.alloc(length))
            yield ScoringPass(self, slots)
        finally:
            for at, taken in enumerate(slots):
                self.lanes[at % len(self.lanes)].slots.free(taken)

    def _run(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput | None]:
        """One forward on every local rank; an output where its pipeline stage is the last."""
        self.require_weights()
        with torch.inference_mode():
            return self.executor.run(lambda rank: self._stages[rank].forward(steps, wanted))

    def _sample(
        self,
        outputs: Sequence[LogitsProcessorOutput | None],
        sampling: Sequence[Sequence[Request]],
    ) -> list[list[int]]:
        """Tokens of each group, chosen where its output is; unusable rows end their request."""
        chosen: list[list[int]] = []
        for group, requests in enumerate(sampling):
            rank = self.executor.result_rank(group)
            here = rank in self._stages and bool(requests)
            output = outputs[list(self._stages).index(rank)] if here else None
            chosen.append([0] * 2 * len(requests) if output is None else _choose(output, requests))
        if any(sampling):
            chosen = self.executor.agree(chosen)
        for lane, numbers, requests in zip(self.lanes, chosen, sampling, strict=True):
            _end_unusable(lane.scheduler, numbers[len(requests) :], requests)
        return [numbers[: len(numbers) // 2] for numbers in chosen]


def _end_unusable(
    scheduler: Scheduler, unusable: Sequence[int], requests: Sequence[Request]
) -> None:
    """End the requests from whose logits nothing can be chosen, with one error for all of them."""
    spoilt = [at for at, flag in enumerate(unusable) if flag]
    if not spoilt:
        return
    error = LogitsError(tuple(spoilt), tuple(_name(requests[at]) for at in spoilt))
    for at in spoilt:
        requests[at].error = error
        scheduler.abort(requests[at])


def _choose(output: LogitsProcessorOutput, requests: Sequence[Request]) -> list[int]:
    """A token for each request, then for each 1 where nothing can be chosen from its logits."""
    logits = output.next_token_logits
    assert logits is not None
    params = [request.params for request in requests]
    steps = [request.num_output for request in requests]
    unusable = [0] * len(requests)
    try:
        return [*sample(logits, params, steps), *unusable]
    except LogitsError as error:
        for row in error.rows:
            unusable[row] = 1
        rows = torch.tensor(error.rows, device=logits.device)
        return [*sample(logits.index_fill(0, rows, 0), params, steps), *unusable]


def _name(request: Request) -> str:
    return f"request {request.request_id}"


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
        self,
        prompts: Sequence[Sequence[int]],
        start: int,
        stop: int,
        want: Callable[[Sequence[int]], Wanted],
    ) -> list[tuple[list[int], LogitsProcessorOutput]]:
        """Rows start to stop of every prompt that has some.

        Args:
            prompts: as many as the pass has slots for.
            start, stop: positions.
            want: what is wanted of some prompts, given by index, whose rows lie end to end.

        Returns:
            For every attention group the prompts it computed, and its output.
        """
        groups = len(self._engine.lanes)
        members = [
            [at for at in range(group, len(prompts), groups) if len(prompts[at]) > start]
            for group in range(groups)
        ]
        steps = [self._step(prompts, each, start, stop) for each in members]
        outputs = self._engine.forward(steps, [want(each) for each in members])
        return list(zip(members, outputs, strict=True))

    def _step(
        self, prompts: Sequence[Sequence[int]], members: Sequence[int], start: int, stop: int
    ) -> Step:
        step = Step(ForwardMode.EXTEND) if members else idle_step()
        for at in members:
            part = prompts[at][start:stop]
            step.request_ids.append(at)
            step.req_pool_indices.append(self._first_row + at)
            step.prefix_lens.append(start)
            step.extend_lens.append(len(part))
            step.known_lens += [len(prompts[at])] * len(part)
            step.samples.append(start + len(part) == len(prompts[at]))
            step.input_ids += part
            step.new_slots += self._slots[at][start:stop]
        return step
