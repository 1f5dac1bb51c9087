"""Drafter: proposes tokens for requests of one model by running another.

Before each step of the target the draft *catches up*: it computes the tokens that have come to
stand since, in one forward for all requests, and the last row of each gives its first proposed
token. Then it goes on alone, one token of each request in a forward, over tokens that are only
expected. What it computed for tokens that turn out otherwise is written over.

Tokens are drawn as the target will draw them: by the request's sampling parameters and, above
temperature 0, by the same random number. So a draft that says what its target says is always right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import LogitsError
from ...forward import ForwardMode
from ..choosing import Choosable
from ..engine import Engine
from ..request import Request
from .forward import DraftForward, Found, Job
from .seats import Seat, Seats
from .verifying import UNUSABLE


class Drafter:
    """One draft at work for the requests of one call of ``generate``.

    Args:
        engine: of the draft.
        tokens: k, proposed for a request at once, at most.
        reads_states: its rows need the target's hidden states, and give some of its own.
        choosable: ids that its target may choose; None for all.
    """

    def __init__(
        self, engine: Engine, tokens: int, reads_states: bool, choosable: Choosable | None = None
    ) -> None:
        """Nothing proposed yet."""
        self._engine, self._tokens, self.reads_states = engine, tokens, reads_states
        self._choosable = choosable
        self._seats = Seats(engine, tokens + 1)

    def propose(self, requests: Sequence[Request]) -> None:
        """Set the proposal of each of these running requests.

        A request whose draft gives unusable logits after tokens that stand gets an error instead.
        """
        jobs = [job for request in requests if (job := self._job(request)) is not None]
        self._catch_up(jobs)
        for at in range(1, max((job.count for job in jobs), default=0)):
            self._go_on([job for job in jobs if job.count > at])

    def observe(self, request: Request, first: int, states: Tensor) -> None:
        """Take the target's hidden states of positions first, first + 1, …"""
        seat = self._seats.of(request)
        if seat is None:
            return
        known = 0 if seat.states is None else seat.states.shape[0]
        assert first == seat.computed + known, "states of a running request come without a gap"
        seat.states = states if seat.states is None else torch.cat([seat.states, states])

    def give_up(self, request: Request) -> None:
        """Propose nothing more for a request until it runs anew."""
        self._seats.give_up(request)

    def release(self, request: Request) -> None:
        """Forget a request that runs no more."""
        if request.speculation is not None:
            request.speculation.proposal = []
        self._seats.release(request)

    def _job(self, request: Request) -> Job | None:
        """What to do for a request; None when there is nothing, or no room."""
        assert request.speculation is not None
        request.speculation.proposal = []
        seat = self._seats.of(request)
        if seat is None:
            return None
        self._keep_true(seat, request.tokens)
        end = request.computed if self.reads_states else request.computed + request.decodes
        # A prompt may hold ids that only the target's head has.
        highest = max(request.tokens[seat.computed : end + 1], default=0)
        foreign = highest >= self._engine.config.vocab_size
        if foreign or not self._keeps_turning(seat, len(request.tokens)):
            self.give_up(request)
            return None
        wanted = self._wanted(request, seat, end) if request.decodes else 0
        if end == seat.computed or not self._seats.grow(request, seat, end + max(0, wanted - 1)):
            return None
        return None if request.decodes and not wanted else Job(request, seat, end, wanted)

    def _keep_true(self, seat: Seat, tokens: Sequence[int]) -> None:
        """Of what was computed for expected tokens, keep what came true.

        A draft that reads states computed it from states of its own, so nothing is kept.
        """
        chain, seat.chain = seat.chain, []
        if not self.reads_states:
            for guess, token in zip(chain, tokens[seat.computed :], strict=False):
                if guess != token:
                    break
                seat.computed += 1

    def _keeps_turning(self, seat: Seat, total: int) -> bool:
        """Let a seat begin again whose keys turn otherwise in so long a sequence.

        Returns:
            Whether it can: the states that a draft reads are gone once it has computed them.
        """
        after = self._engine.limits.recompute_after
        if after is None or not seat.known_len <= after < total:
            return True
        if seat.computed and self.reads_states:
            return False
        seat.computed, seat.known_len = 0, total
        return True

    def _wanted(self, request: Request, seat: Seat, end: int) -> int:
        """Tokens to propose: all of them may stand and one more follows, within the limit."""
        assert request.limit is not None
        limits = self._engine.limits
        most, after = limits.pool.context, limits.recompute_after
        if after is not None and seat.known_len <= after:  # guesses must not turn otherwise
            most = after
        room = most - end + 1
        return max(0, min(self._tokens, request.limit - request.num_output - 1, room))

    def _catch_up(self, jobs: Sequence[Job]) -> None:
        ahead = int(self.reads_states)
        while waiting := [job for job in jobs if job.rest]:
            forward = DraftForward(self._engine, ForwardMode.DRAFT_EXTEND, self._choosable)
            for job in waiting:
                size = min(job.rest, forward.room(job))
                if not size:
                    continue
                start = job.seat.computed
                ids = job.request.tokens[start + ahead : start + ahead + size]
                states = None if job.seat.states is None else job.seat.states[:size]
                forward.add(job, ids, size == job.rest and job.count > 0, states)
            for found in forward.run():
                seat = found.job.seat
                seat.computed += found.rows
                if seat.states is not None:
                    seat.states = seat.states[found.rows :]
                self._take(found)

    def _go_on(self, jobs: Sequence[Job]) -> None:
        """Each request's last proposed token, and one more after it."""
        if not jobs:
            return
        forward = DraftForward(self._engine, ForwardMode.DECODE, self._choosable)
        for job in jobs:
            forward.add(job, job.request.proposal[-1:], True, job.state)
        for found in forward.run():
            found.job.seat.chain.append(found.job.request.proposal[-1])
            self._take(found)

    def _take(self, found: Found) -> None:
        """Enter what a forward gave for a request."""
        job, request = found.job, found.job.request
        assert request.speculation is not None
        request.speculation.draft_forwards += 1
        job.state = found.state
        if found.token == UNUSABLE:
            job.count = 0
            if not request.proposal:  # else it is of a row behind guesses, which may hold anything
                request.error = LogitsError((0,), (f"the draft of request {request.request_id}",))
        elif found.token is not None:
            request.speculation.proposal.append(found.token)
