"""Engine: prompts and requests over one KV pool, on every rank.

Two kinds of work share the pool. *Requests* generate: the scheduler batches them step by step.
*Scoring* computes prompts once (logits, log-probabilities, vectors) and gives its slots back.

Threads take turns (``turns.py``): what a user calls here takes one; what is marked *with the turn* is
for callers who have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import CapacityError, InputError
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
from .turns import Turns

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


class OfOneProcess:
    """What cannot be pickled or copied."""

    def __reduce__(self) -> NoReturn:
        """Refuse.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{type(self).__name__} cannot be pickled or copied: its threads, requests and keys and "
            "values belong to one process; load the checkpoint where the model is wanted "
            "(archzoo.load), and take changed weights there by export_weights and update_weights"
        )


class Engine(OfOneProcess):
    """Runs steps on all local ranks.

    Args:
        executor: the ranks.
        stages: one for each local rank.
        config: the model.
        limits: sizes; of the pool and requests of each attention group.

    Attributes:
        lanes: requests waiting and running, of each attention group.
        choosable: ids that may be chosen for requests; None for all. Set by who knows the tokenizer.
        turns: of the threads that use it.
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
        self.turns = Turns(executor.one_thread, executor.unforkable or _unforkable(stages))
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
        with self.turns.look():
            return self.spare_slots

    @property
    def spare_slots(self) -> int:
        """The same, without waiting for a step that may be under way."""
        return min(lane.slots.available for lane in self.lanes)

    @property
    def cache_stats(self) -> CacheStats:
        """What the prefix caches of all attention groups have done."""
        with self.turns.look():
            return CacheStats.total(lane.cache.stats for lane in self.lanes)

    def clear_cache(self) -> None:
        """Forget cached prefixes: their keys and values are no longer those of the model.

        Raises:
            InputError: requests are under way.
        """
        with self.turns.take():
            self.forget_prefixes()

    def forget_prefixes(self) -> None:
        """``clear_cache``, with the turn."""
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
        with self.turns.look():
            return any(lane.scheduler.has_work for lane in self.lanes)

    def add(self, request: Request) -> Request:
        """Queue a request in the attention group with the least to do.

        Raises:
            InputError, CapacityError: as ``Scheduler.add``.
            SpoiltWeightsError: writing the weights ended half-way.
        """
        return self.add_all([request])[0]

    def add_all(self, requests: Sequence[Request]) -> list[Request]:
        """Queue requests together: all of them or, where one is refused, none.

        Raises:
            InputError, CapacityError, SpoiltWeightsError: as ``add``.
        """
        with self.turns.take():
            self.require_weights()
            queued: list[Request] = []
            try:
                for request in requests:
                    lane = min(self.lanes, key=lambda lane: lane.load)
                    queued.append(lane.scheduler.add(request))
            except BaseException:
                self._abort(queued)
                raise
        return queued

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
        with self.turns.take():
            self.capture(indices)

    def capture(self, indices: Sequence[int]) -> None:
        """``set_aux_layers``, with the turn."""
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
        """End a request; its slots are free. One that has finished stays as it is.

        From inside of a step (a hook), that happens at its end.

        Raises:
            InputError: the request was never added here.
        """
        with self.turns.look():
            if not request.finished and not any(lane.holds(request) for lane in self.lanes):
                self.lanes[0].scheduler.abort(request)  # which says so
        self.turns.soon(partial(self._abort, [request]))

    def abandon(self, requests: Sequence[Request]) -> None:
        """Abort those of these requests that were added and are unfinished."""
        if left := [each for each in requests if each.request_id >= 0 and not each.finished]:
            self.turns.soon(partial(self._abort, left))

    def abandon_later(self, requests: Sequence[Request]) -> None:
        """The same when the engine is used next; for finalizers, which may run inside of a step."""
        self.turns.later(partial(self._abort, requests))

    def step(self) -> list[Request]:
        """One forward over the requests under way; those that got a token from it.

        A forward that fails counts for nothing: the same step is planned again. A request whose
        logits are unusable ends, with the error in ``request.error``; the others go on. Drafts
        propose before it, in forwards of their own.
        """
        with self.turns.take():
            return self._step()

    @contextmanager
    def driven(self, ready: Callable[[], bool]) -> Iterator[None]:
        """Have steps made, by this thread or another one, until ready(); the body has the turn.

        Args:
            ready: asked between two steps; reads requests of this engine, and changes nothing.

        Raises:
            BaseException: what a step raised that this thread made.
        """
        with self.turns.ride(self, ready) as turn:
            while not ready():
                if not self._step(draft_errors=False) and not self.has_work and not ready():
                    raise InputError(
                        "requests of this call are gone: another thread was interrupted while it "
                        "ended them; make the call again"
                    )
                if not ready():
                    turn.pause()
            yield

    def _step(self, draft_errors: bool = True) -> list[Request]:
        """``step``, with the turn.

        Args:
            draft_errors: raise what a draft raises; False ends the requests that it served with it,
                so that only the threads they belong to see it.
        """
        self._propose(draft_errors)
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

    def _abort(self, requests: Sequence[Request]) -> None:
        """With the turn."""
        for lane in self.lanes:
            for request in filter(lane.holds, requests):
                lane.scheduler.abort(request)

    def choose(
        self,
        steps: Sequence[Step],
        choices: Sequence[Sequence[Choice]],
        read: bool = False,
        choosable: Choosable | None = None,
    ) -> tuple[list[list[int]], list[Tensor]]:
        """With the turn, one forward on every rank; a token for each row that samples, everywhere.

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

    def _propose(self, raises: bool) -> None:
        """Let drafts propose; a request whose draft gives nothing usable ends."""
        served: dict[DraftSource, list[Request]] = {}
        for lane in self.lanes:
            for request in lane.scheduler.running:
                if request.speculation is not None:
                    served.setdefault(request.speculation.drafter, []).append(request)
        for drafter, requests in served.items():
            try:
                drafter.propose(requests)
            except Exception as error:
                if raises:
                    raise
                for request in requests:
                    request.error = error
            for request in requests:
                if request.error is not None:
                    self._abort([request])

    def forward(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput]:
        """With the turn, one forward on every rank; the output of each attention group, everywhere.

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
            prompts: at most SCORING_ROWS of them. The body has the turn.
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
        with self.turns.take() as turn:
            scoring = ScoringPass(self.lanes, self.limits.max_requests, self.forward)
            try:
                while not self._seated(scoring, prompts, borrowable):
                    turn.pause()
                yield scoring
            finally:
                scoring.give_back()

    def _seated(
        self, scoring: ScoringPass, prompts: Sequence[Sequence[int]], borrowable: Sequence[int]
    ) -> bool:
        """Whether prompts have got slots; requests that another thread steps are put back for them.

        Raises:
            CapacityError: no request holds the slots that are missing.
        """
        driven = self.turns.driven(self)
        try:
            scoring.take(prompts, borrowable, not driven)
        except CapacityError:
            if not driven or not any(lane.scheduler.running for lane in self.lanes):
                raise
            scoring.give_back()
            return False
        return True

    def _run(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput | None]:
        """One forward on every local rank; an output where its pipeline stage is the last."""
        self.require_weights()
        # Who drives the step computes for others too: its autocast is not theirs.
        device = self.runners[0].device.type
        with torch.inference_mode(), torch.autocast(device, enabled=False):
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


def _unforkable(stages: Sequence[StageRunner]) -> str:
    """Why a forked child cannot compute with these; empty where it can."""
    device = stages[0].runner.device
    if device.type == "cpu":
        return ""
    return f"{device} serves only the process that began to use it; load the model in the child"
