"""Continuous batching: which tokens of which requests the next forward computes.

One rule drives everything. A request is a list of tokens of which the first ``computed`` are in the
cache; a step computes some more, and when it reaches the end of the list, the last row's logits
give the next token. Prefill, chunked prefill, decode and recomputing after preemption are all this.

Requests are served in order of arrival: none is admitted before an earlier one. A request is
admitted when there are slots for all tokens it has, those that it borrows from the prefix cache
aside. Cached prefixes that nobody uses give way first, then what this model holds as a draft of
others. When a decode token finds no slot even so, the youngest running request gives its slots back
and waits; it is computed again later, from prompt and output, so its tokens stay the same. The
oldest request is never put back, hence everything finishes.

A request may bring a proposal: tokens that a draft model expects to come. They are computed in the
same step as its decode token, every row gives a token, and those stand that follow what stands.

Where a family's rotation changes with length and its reference computes a sequence anew then, a
request that has grown past that length begins again in its place: all its slots are new ones.

A request leaves what it has computed to the cache: its prompt chunk by chunk, the rest when it ends
or is put back. One that begins with many tokens which another is just computing waits for them.

Slots are free, or cached, when their request ends, which happens between forwards: one forward is
under way at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers
from itertools import islice

from ..errors import CapacityError, InputError
from ..forward import ForwardMode
from .prefix_cache import PrefixCache
from .request import FinishReason, Request, RequestState
from .slots import SlotAllocator
from .speculative.verifying import UNUSABLE, verified
from .step import Step


class Scheduler:
    """Takes requests in, gives steps out, takes sampled tokens in.

    ``next_step`` and ``finish_step`` alternate; requests are added and aborted at any time.

    Args:
        slots: allocator of the pool; the scheduler frees what it took.
        max_requests: requests running at once, rows of the slot table.
        max_context: tokens of the longest sequence.
        prefill_chunk: prompt tokens of one request in one step at most; None for no such limit.
        max_batch_tokens: rows of one step at most.
        ids: numbers for requests, shared with other schedulers; 0, 1, 2, … when None.
        cache: of prefixes in the same slots; None shares none.
        make_room: lets somebody outside give slots back; whether anybody did.
        recompute_after: tokens of a sequence past which all its keys are made again; None for never.

    Raises:
        InputError: a limit below 1, or fewer rows than requests.
    """

    def __init__(
        self,
        slots: SlotAllocator,
        max_requests: int,
        max_context: int,
        prefill_chunk: int | None,
        max_batch_tokens: int,
        ids: Iterator[int] | None = None,
        cache: PrefixCache | None = None,
        make_room: Callable[[], bool] = lambda: False,
        recompute_after: int | None = None,
    ) -> None:
        """No request yet."""
        chunk = max_batch_tokens if prefill_chunk is None else prefill_chunk
        if min(max_requests, max_context, chunk) < 1 or max_batch_tokens < max_requests:
            raise InputError(
                f"max_requests={max_requests}, max_context={max_context}, "
                f"prefill_chunk={prefill_chunk}, max_batch_tokens={max_batch_tokens}: all must be "
                ">= 1, and max_batch_tokens >= max_requests, for each may decode in the same step"
            )
        self.slots = slots
        self.cache = PrefixCache(slots, 0) if cache is None else cache
        self._make_room = make_room
        self._recompute_after = max_context if recompute_after is None else recompute_after
        self.max_context, self.max_batch_tokens = max_context, max_batch_tokens
        self._chunk = chunk
        self._free_rows = list(range(max_requests))
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._in_step: list[Request] = []
        self._step: Step | None = None
        self._ids = numbers() if ids is None else ids

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Requests that hold no slot, in the order they will be admitted."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that hold slots, oldest first."""
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> Request:
        """Queue a request, behind all earlier ones.

        Raises:
            InputError: prompt and new tokens exceed the context, or the request is not new.
            CapacityError: they exceed the pool: it could never run.
        """
        if request.request_id >= 0:
            raise InputError(f"{request!r} was added before; make a new Request for each prompt")
        request.limit = self._limit(request)
        request.request_id = next(self._ids)
        self._waiting.append(request)
        return request

    def abort(self, request: Request) -> None:
        """End a request now; its slots are free. One that has finished stays as it is.

        Raises:
            InputError: the request was never added here.
        """
        if request.finished:
            return
        if request in self._running:
            self._end(request, "abort")
        elif request in self._waiting:
            self._waiting.remove(request)
            request.finish("abort")
        else:
            raise InputError(f"{request!r} is not of this scheduler; abort what was added to it")

    def next_step(self) -> Step | None:
        """What to compute next; None when there is no request.

        Raises:
            InputError: the last step is neither finished nor cancelled.
            CapacityError: slots are held by someone outside, and nothing here can run.
        """
        if self._step is not None:
            raise InputError("a step is under way; call finish_step or cancel_step first")
        step, taken = Step(), self._in_step
        taken.clear()
        self._begin_longer_again()
        decodes = self._plan_decodes(step)
        self._plan_prefills(step)
        self._admit(step)
        while not taken and self._waiting and self._make_room():
            self._admit(step)
        if not taken:
            if self._waiting:
                raise self._stuck(self._waiting[0])
            return None
        if decodes < len(taken):
            step.mode = ForwardMode.MIXED if decodes else ForwardMode.EXTEND
        elif decodes < len(step.input_ids):
            step.mode = ForwardMode.TARGET_VERIFY
        self._step = step
        return step

    def members(self, step: Step) -> list[Request]:
        """The requests of this step, in row order, which is the order finish_step wants tokens in."""
        self._check_current(step)
        return list(self._in_step)

    def finish_step(self, step: Step, tokens: Sequence[int]) -> list[Request]:
        """Take the sampled tokens of a step.

        Args:
            step: what next_step gave last.
            tokens: one for each row that samples.

        Returns:
            The requests that ended with it.

        Raises:
            InputError: another step, or another number of tokens.
        """
        self._check_current(step)
        if len(tokens) != sum(step.samples):
            raise InputError(f"{len(tokens)} tokens for {sum(step.samples)} rows that sample")
        self._step = None
        ended: list[Request] = []
        token = iter(tokens)
        for request, count, sampled, proposal in zip(
            self._in_step, step.extend_lens, step.samples, step.proposals, strict=True
        ):
            new = verified(proposal, list(islice(token, sampled)))
            if request.finish_reason is not None:
                continue  # aborted while the step was under way
            prefilled = not request.num_output
            known = count - len(proposal)
            if UNUSABLE in new:  # behind it were guesses; the row is computed again without
                new, known = [], 0
            if reason := request.advance(known, new, len(proposal)):
                self._end(request, reason)
                ended.append(request)
            elif prefilled:
                self._publish(request)
            elif len(request.slots) > len(request.tokens):
                self._drop_guesses(request)
        return ended

    def cancel_step(self, step: Step) -> None:
        """The step's forward failed: nothing of it counts, and next_step plans it again.

        Raises:
            InputError: another step than the one under way.
        """
        self._check_current(step)
        self._step = None

    def put_back(self, force: bool) -> bool:
        """Between two steps, let the youngest running request wait without its slots.

        Args:
            force: True for any number of times; otherwise once for each token it gives, so that it
                comes to an end however often somebody wants its slots.

        Returns:
            Whether there was one.
        """
        if not self._running:
            return False
        youngest = self._running[-1]
        if youngest.num_output <= youngest.put_back_at and not force:
            return False
        youngest.put_back_at = youngest.num_output
        self._preempt(youngest)
        return True

    def _limit(self, request: Request) -> int:
        """New tokens the request may have, checked against context and pool."""
        prompt, asked = request.num_prompt, request.limit
        total = prompt + (1 if asked is None else asked)
        sizes = f"{prompt} prompt tokens + {total - prompt} new = {total}"
        if total > self.max_context:
            raise InputError(
                f"{sizes}, more than the context of {self.max_context}; "
                "shorten the prompt or lower max_new_tokens"
            )
        if total > self.slots.num_slots:
            raise CapacityError(
                f"{sizes}, more than the {self.slots.num_slots} slots of the KV pool; "
                "shorten the request, or load with a larger pool"
            )
        return min(self.max_context, self.slots.num_slots) - prompt if asked is None else asked

    def _plan_decodes(self, step: Step) -> int:
        """A row for each request that has one token to compute and an output, and its proposal."""
        # A preemption takes requests off the end, never one that was seen already.
        for request in self._running:
            if request.decodes:
                proposal = self._grow(request)
                if proposal is None:
                    break
                self._put(step, request, 1, proposal)
        return len(self._in_step)

    def _grow(self, request: Request) -> Sequence[int] | None:
        """Give the request slots for its next token and its proposal, of which nobody needs some.

        Returns:
            As much of the proposal as there are slots for; None when it was put back itself.
        """
        held = len(request.slots) - request.computed
        while not held and not self.slots.available:
            if self._make_room():
                continue
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is request:
                return None
        # Each other running request keeps a slot for its next token.
        spare = max(0, self.slots.available + 1 - len(self._running))
        rows = min(held + spare, self.max_batch_tokens // len(self._running))
        if request.known_len <= self._recompute_after:  # guesses must not turn otherwise
            rows = min(rows, self._recompute_after - request.computed)
        proposal = request.proposal[: max(0, rows - 1)]
        missing = 1 + len(proposal) - held
        if missing > 0:
            request.slots += self.slots.alloc_after(request.slots[-1], missing)
        return proposal

    def _drop_guesses(self, request: Request) -> None:
        """Give the slots of rejected tokens back, open for the request's next ones."""
        kept = len(request.tokens)
        assert request.limit is not None
        room = request.num_prompt + request.limit - 1 - kept
        self.slots.free(request.slots[kept:], room=max(0, room))
        del request.slots[kept:]

    def _plan_prefills(self, step: Step) -> None:
        """The next chunk of running requests whose prompt is not through."""
        for request in self._running:
            if not request.decodes:
                self._plan_chunk(step, request)

    def _plan_chunk(self, step: Step, request: Request) -> None:
        budget = self.max_batch_tokens - len(step.input_ids)
        count = min(len(request.tokens) - request.computed, self._chunk, budget)
        if count:
            self._put(step, request, count)

    def _put(self, step: Step, request: Request, count: int, proposal: Sequence[int] = ()) -> None:
        """Let the step compute the request's next count tokens, and its proposal."""
        start, tokens = request.computed, request.tokens
        stop, end = start + count, start + count + len(proposal)
        self._in_step.append(request)
        step.request_ids.append(request.request_id)
        step.req_pool_indices.append(request.req_pool_index)
        step.prefix_lens.append(start)
        if start and start == request.borrowed:
            step.borrowed_slots[request.req_pool_index] = request.slots[:start]
        step.extend_lens.append(end - start)
        known = request.known_len
        step.known_lens += [max(known, at + 1) for at in range(start, end)]
        step.samples.append(1 + len(proposal) if stop == len(tokens) else 0)
        step.input_ids += [*tokens[start:stop], *proposal]
        step.new_slots += request.slots[start:end]

    def _admit(self, step: Step) -> None:
        """Let waiting requests in, first come first served, while there is room for them."""
        while self._waiting and self._free_rows:
            if len(step.input_ids) >= self.max_batch_tokens or not self._seat(self._waiting[0]):
                return
            request = self._waiting.popleft()
            self._start(request, len(self._running))
            self._plan_chunk(step, request)

    def _start(self, request: Request, at: int) -> None:
        """Let a request that has slots run, as the at-th of all."""
        request.req_pool_index = heapq.heappop(self._free_rows)
        request.state = RequestState.RUNNING
        self._running.insert(at, request)

    def _begin_longer_again(self) -> None:
        """Give requests that have grown past where their keys turn otherwise new slots for all.

        Younger requests make room for one, as they do for a decode token.
        """
        limit = self._recompute_after
        for request in [r for r in self._running if r.known_len <= limit < len(r.tokens)]:
            if request.state is not RequestState.RUNNING:
                continue  # it has made room for an older one
            at = self._running.index(request)
            self._release(request)
            while not self._seat(request):
                if self._make_room():
                    continue
                if at == len(self._running):
                    self._put_back(request)
                    break
                self._preempt(self._running[-1])
            else:
                self._start(request, at)

    def _seat(self, request: Request) -> bool:
        """Give a request slots for its tokens, borrowed ones first; False when it has to wait."""
        tokens = request.tokens
        if len(tokens) > self._recompute_after:
            request.known_len = len(tokens)
        # A draft that reads hidden states wants those of every token.
        most = 0 if request.reads_states else len(tokens) - 1
        lease = self.cache.borrow(tokens, request.known_len, most)
        borrowed = lease.path_slots
        found = len(borrowed)
        fresh = len(tokens) - found
        # Each running request keeps a slot for its next token.
        short = self.slots.available - fresh < len(self._running)
        if short or self.cache.is_coming(request, found, most, self._running):
            self.cache.give_back(lease)
            return False
        assert request.limit is not None
        # The last token of all is never computed, so it needs no slot.
        room = request.limit - request.num_output - 1
        last = borrowed[-1] if borrowed else None
        request.slots = borrowed + self.slots.alloc(fresh, room, last)
        request.lease, request.computed, request.borrowed = lease, found, found
        if request.cached_tokens is None:
            request.cached_tokens = found
            if not request.reads_states:
                self.cache.record(request.num_prompt, found)
        return True

    def _publish(self, request: Request) -> None:
        """Leave what is computed to the prefix cache, and go on using it."""
        assert request.lease is not None
        request.lease = self.cache.publish(
            request.tokens[: request.computed], request.slots, request.known_len, request.lease
        )

    def _preempt(self, request: Request) -> None:
        self._release(request)
        self._put_back(request)

    def _put_back(self, request: Request) -> None:
        request.state, request.computed = RequestState.WAITING, 0
        self._waiting.appendleft(request)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._release(request)
        request.finish(reason)

    def _release(self, request: Request) -> None:
        self._running.remove(request)
        if request.speculation is not None:
            request.speculation.drafter.release(request)
        if request.error is None:  # else what it computed is not fit for others
            self._publish(request)
        assert request.lease is not None
        self.cache.release(request.slots, request.lease)
        heapq.heappush(self._free_rows, request.req_pool_index)
        request.slots, request.lease, request.req_pool_index = [], None, -1

    def _check_current(self, step: Step) -> None:
        if step is not self._step:
            raise InputError("this step is not the one under way; use what next_step gave last")

    def _stuck(self, request: Request) -> CapacityError:
        return CapacityError(
            f"request {request.request_id} needs {len(request.tokens)} slots, "
            f"{self.slots.available} of {self.slots.num_slots} are free and no request here holds "
            "the others; free what was taken from this allocator elsewhere"
        )
