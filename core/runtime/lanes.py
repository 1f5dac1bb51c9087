"""Lane: the requests and KV slots of one attention group.

Attention groups (``attn_dp``) share the model and each forward, and nothing else: every group has
requests of its own over slots of its own. All processes keep the lanes of all groups, so that each
knows the rows of every group without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify

from ..forward import ForwardMode
from .prefix_cache import PrefixCache
from .request import Request
from .scheduler import Scheduler
from .slots import SlotAllocator
from .step import Step, idle_step


class Lane:
    """One attention group.

    Args:
        slots: tokens its KV pool holds.
        max_requests, max_context, prefill_chunk, max_batch_tokens, ids: as in Scheduler.
        shared_tokens: limit of the prefix cache.
        recompute_after: as in Scheduler.
        draft_rows: rows of the slot table for requests of other models, which this one drafts for.

    Attributes:
        slots: which of them are free.
        cache: prefixes in them.
        scheduler: requests waiting and running.
        draft_rows: a heap of those that are free.
        guests: how each request that this model drafts for is told to give its slots back, by row.
    """

    def __init__(
        self,
        slots: int,
        max_requests: int,
        max_context: int,
        prefill_chunk: int | None,
        max_batch_tokens: int,
        ids: Iterator[int],
        shared_tokens: int,
        recompute_after: int | None,
        draft_rows: range,
    ) -> None:
        self.slots = SlotAllocator(slots)
        self.cache = PrefixCache(self.slots, shared_tokens)
        self.draft_rows = list(draft_rows)
        heapify(self.draft_rows)
        self.guests: dict[int, Callable[[], None]] = {}
        self.scheduler = Scheduler(
            self.slots,
            max_requests,
            max_context,
            prefill_chunk,
            max_batch_tokens,
            ids,
            self.cache,
            self.make_room,
            recompute_after,
        )

    @property
    def requests(self) -> tuple[Request, ...]:
        """Those that have not ended."""
        return (*self.scheduler.waiting, *self.scheduler.running)

    def make_room(self) -> bool:
        """Let the guest who came last give its slots back; whether there was one."""
        if not self.guests:
            return False
        _, leave = self.guests.popitem()
        leave()
        return True

    @property
    def load(self) -> int:
        """Tokens of requests that have not ended."""
        return sum(len(request.tokens) for request in self.requests)

    def holds(self, request: Request) -> bool:
        """Whether a request waits or runs here."""
        return request in self.requests


def next_steps(lanes: Sequence[Lane]) -> list[Step] | None:
    """A step for every lane, without rows where one has nothing to do; None when none has.

    Raises:
        CapacityError: a lane is stuck; no step is under way then.
    """
    steps: list[Step | None] = []
    try:
        for lane in lanes:
            steps.append(lane.scheduler.next_step())
    except BaseException:
        cancel_steps(lanes, steps)
        raise
    if not any(steps):
        return None
    return [step or idle_step() for step in steps]


def cancel_steps(lanes: Sequence[Lane], steps: Sequence[Step | None]) -> None:
    """Plan these steps again next time."""
    for lane, step in zip(lanes, steps, strict=False):
        if step is not None and step.mode is not ForwardMode.IDLE:
            lane.scheduler.cancel_step(step)
