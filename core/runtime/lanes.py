"""Lane: the requests and KV slots of one attention group.

Attention groups (``attn_dp``) share the model and each forward, and nothing else: every group has
requests of its own over slots of its own. All processes keep the lanes of all groups, so that each
knows the rows of every group without asking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..forward import ForwardMode
from .request import Request
from .scheduler import Scheduler, Step, idle_step
from .slots import SlotAllocator


class Lane:
    """One attention group.

    Args:
        slots: tokens its KV pool holds.
        max_requests, max_context, prefill_chunk, max_batch_tokens, ids: as in Scheduler.

    Attributes:
        slots: which of them are free.
        scheduler: requests waiting and running.
    """

    def __init__(
        self,
        slots: int,
        max_requests: int,
        max_context: int,
        prefill_chunk: int | None,
        max_batch_tokens: int,
        ids: Iterator[int],
    ) -> None:
        self.slots = SlotAllocator(slots)
        self.scheduler = Scheduler(
            self.slots, max_requests, max_context, prefill_chunk, max_batch_tokens, ids
        )

    @property
    def load(self) -> int:
        """Tokens of requests that have not ended."""
        requests = (*self.scheduler.waiting, *self.scheduler.running)
        return sum(len(request.tokens) for request in requests)

    def holds(self, request: Request) -> bool:
        """Whether a request waits or runs here."""
        return request in self.scheduler.running or request in self.scheduler.waiting


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
