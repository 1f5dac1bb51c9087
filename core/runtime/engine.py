"""Engine: prompts and requests over one KV pool, on every rank.

Two kinds of work share the pool. *Requests* generate: the scheduler batches them step by step.
*Scoring* computes prompts once (logits, log-probabilities, vectors) and gives its slots back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import InputError
from ..layers import LogitsProcessorOutput
from ..models import DraftModel
from .choosing import Choice, Choosable, choices_of, choose, end_unusable
from .executor import Executor
from .lanes import Lane, cancel_steps, next_steps
from .pipeline import StageEvent, StageRunner, from_tensors, to_tensors
from .prefix_cache import CacheStats
from .request import Request
from .runner import PoolSize, Runner, Wanted
from .scoring_pass import ScoringPass
from .speculative.observing import hand_over
from .speculative.state import DraftSource
from .step import Step

BATCH_TOKENS = 2048
"""Rows of one forward at most, unless more requests than that decode together."""


@dataclass(frozen=True)
class EngineLimits:
    """What an engine may have under way.

    Args:
        pool: room of the KV pool.
        max_requests: generating requests at once.
        prefill_chunk: prompt tokens of one request in one forward; None for BATCH_TOKENS.
        shared_tokens: leading tokens of a sequence that others may borrow; 0 for no prefix cache.
        recompute_after: tokens of a sequence past which all its keys are made again; None for never.
    """

    pool: PoolSize
    max_requests: int
    prefill_chunk: int | None = None
    shared_tokens: int = 0
    recompute_after: int | None = None


class Engine:
    """Runs steps on all local ranks.

    Args:
        executor: the ranks.
        stages: one for each local rank.
        config: the model.
        limits: sizes; of the pool and requests of each attention group.

    Attributes:
        lanes: requests waiting and running, of each attention group.
        choosable: ids that may be chosen for requests; None for all. Set by who knows the tokenizer.
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
        self.choosable: Choosable | None = None
        self._stages = dict(zip(executor.ranks, stages, strict=True))
        ids, rows = count(), limits.max_requests + self.SCORING_ROWS
        self.lanes = tuple(
            Lane(
                limits.pool.slots,
                limits.max_requests,
                limits.pool.context,
                limits.prefill_chunk,
                max(BATCH_TOKENS, limits.max_requests),
                ids,
                limits.shared_tokens,
                limits.recompute_after,
                range(rows, self.table_rows(limits.max_requests)),
            )
            for _ in range(executor.topology.attn_dp)
        )

    @classmethod
    def table_rows(cls, max_requests: int) -> int:
        """Rows of the slot table: of requests, then of scoring, then of requests drafted for."""
        return 2 * max_requests + cls.SCORING_ROWS

    @property
    def runners(self) -> tuple[Runner, ...]:
        """One for each local rank."""
        return tuple(stage.runner for stage in self._stages.values())

    @property
    def free_slots(self) -> int:
        """Slots that can be had, cached ones included, in the attention group that has fewest."""
        return min(lane.slots.available for lane in self.lanes)

    @property
    def cache_stats(self) -> CacheStats:
        """What the prefix caches of all attention groups have done."""
        return CacheStats.total(lane.cache.stats for lane in self.lanes)

    def clear_cache(self) -> None:
        """Forget cached prefixes: their keys and values are no longer those of the model.

        Raises:
            InputError: requests are under way.
        """
        if self.has_work:
            raise InputError(
                "the prefix cache cannot be cleared while requests that read it are under way; "
                "finish or abort them first"
            )
        for lane in self.lanes:
            lane.cache.clear()

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

    def set_aux_layers(self, indices: Sequence[int]) -> None:
        """Let every rank give these hidden states beside its output; see the module's.

        Raises:
            BoundaryError: an index that no layer has, or one twice.
            InputError: a draft reads others for requests under way, or this one is such a draft.
        """
        if tuple(indices) == self.runners[0].module.aux_layers:
            return
        waiting = [request for lane in self.lanes for request in lane.requests]
        if any(request.reads_states for request in waiting):
            raise InputError(
                f"hidden states {self.runners[0].module.aux_layers} are read by the draft of "
                "requests under way; finish or abort them first"
            )
        guests = any(lane.guests for lane in self.lanes)
        if guests and isinstance(self.runners[0].module, DraftModel):
            raise InputError(
                f"this draft goes on from its own hidden states {self.runners[0].module.aux_layers} "
                "for requests under way; finish or abort them first"
            )
        for runner in self.runners:
            runner.module.set_aux_layers(indices)

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
        logits are unusable ends, with the error in ``request.error``; the others go on. Drafts
        propose before it, in forwards of their own.
        """
        self._propose()
        steps = next_steps(self.lanes)
        if steps is None:
            return []
        busy = [(at, lane) for at, lane in enumerate(self.lanes) if steps[at].input_ids]
        members: list[list[Request]] = [[] for _ in self.lanes]
        try:
            for at, lane in busy:
                members[at] = lane.scheduler.members(steps[at])
            read = any(request.reads_states for each in members for request in each)
            choices = list(map(choices_of, members, steps))
            tokens, states = self.choose(steps, choices, read, self.choosable)
            for at, lane in busy:
                end_unusable(lane.scheduler, steps[at], tokens[at], members[at])
        except BaseException:
            cancel_steps(self.lanes, steps)
            raise
        for at, lane in busy:
            lane.scheduler.finish_step(steps[at], tokens[at])
            if read:
                hand_over(steps[at], members[at], states[at])
        return [
            request
            for each, step in zip(members, steps, strict=True)
            for request, count in zip(each, step.samples, strict=True)
            if count
        ]

    def choose(
        self,
        steps: Sequence[Step],
        choices: Sequence[Sequence[Choice]],
        read: bool = False,
        choosable: Choosable | None = None,
    ) -> tuple[list[list[int]], list[Tensor]]:
        """One forward on every rank; a token for each row that samples, on every process.

        Args:
            steps: of each group.
            choices: of each group, for each row that samples.
            read: also the hidden states that ride along.
            choosable: ids that may be chosen; None for all.

        Returns:
            For each group the tokens, -1 where nothing can be chosen; and the states of all rows
            side by side, (T, W), none unless asked for.
        """
        outputs = self._run(steps, [Wanted(step.sample_rows) for step in steps])
        return self._chosen(outputs, choices, choosable), self._states(outputs) if read else []

    def _propose(self) -> None:
        """Let drafts propose; a request whose draft gives nothing usable ends."""
        served: dict[DraftSource, list[Request]] = {}
        for lane in self.lanes:
            for request in lane.scheduler.running:
                if request.speculation is not None:
                    served.setdefault(request.speculation.drafter, []).append(request)
        for drafter, requests in served.items():
            drafter.propose(requests)
            for request in requests:
                if request.error is not None:
                    self.abort(request)

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
            aux = len(self.runners[0].module.aux_layers)
            found = self.executor.results([to_tensors(output, aux) for output in outputs])
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
    def scoring(
        self, prompts: Sequence[Sequence[int]], borrowable: Sequence[int]
    ) -> Iterator[ScoringPass]:
        """Slots and table rows for prompts that are computed once.

        Args:
            prompts: at most SCORING_ROWS of them.
            borrowable: leading tokens of each whose rows nobody wants, so that they can come from
                the prefix cache.

        Raises:
            InputError: a prompt longer than the context.
            CapacityError: fewer slots are available.
        """
        context = self.limits.pool.context
        for at, prompt in enumerate(prompts):
            if len(prompt) > context:
                raise InputError(
                    f"prompt {at} has {len(prompt)} tokens, more than the context of {context}; "
                    "shorten it"
                )
        scoring = ScoringPass(self.lanes, self.limits.max_requests, self.forward)
        try:
            scoring.take(prompts, borrowable)
            yield scoring
        finally:
            scoring.give_back()

    def _run(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput | None]:
        """One forward on every local rank; an output where its pipeline stage is the last."""
        self.require_weights()
        with torch.inference_mode():
            return self.executor.run(lambda rank: self._stages[rank].forward(steps, wanted))

    def _chosen(
        self,
        outputs: Sequence[LogitsProcessorOutput | None],
        choices: Sequence[Sequence[Choice]],
        choosable: Choosable | None,
    ) -> list[list[int]]:
        """Tokens of each group, chosen where its output is."""
        chosen: list[list[int]] = []
        for group, wanted in enumerate(choices):
            rank = self.executor.result_rank(group)
            here = rank in self._stages and bool(wanted)
            output = outputs[list(self._stages).index(rank)] if here else None
            tokens = [0] * len(wanted) if output is None else choose(output, wanted, choosable)
            chosen.append(tokens)
        return self.executor.agree(chosen) if any(choices) else chosen

    def _states(self, outputs: Sequence[LogitsProcessorOutput | None]) -> list[Tensor]:
        """What rode along, of each group, side by side: (T, W)."""
        count = len(self.runners[0].module.aux_layers)
        mine = [output.aux_hidden_states if output else [None] * count for output in outputs]
        with torch.inference_mode():
            return [torch.cat(list(map(_there, each)), -1) for each in self.executor.results(mine)]


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
