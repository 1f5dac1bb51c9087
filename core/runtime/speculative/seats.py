"""Seats: where requests of a target are kept in the KV pool of its draft.

A seat lasts as long as its request runs. Slots are borrowed: where the draft's pool has no room, or
its context ends, or requests of its own need the slots, the seat is given up, and the request goes
on without proposals until it runs anew. So a draft, be it the target itself, never takes the room
that running requests need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from torch import Tensor

from ..engine import Engine
from ..request import Request


@dataclass
class Seat:
    """One request's place.

    Args:
        lane: attention group of the draft.
        row: of its slot table.
        known_len: tokens by which its keys turn at least, as of a request.
        slots: slot of each position.
        computed: leading positions computed from tokens that stand.
        chain: tokens of further positions, which were only expected.
        states: (rows, W) of the target, of positions from ``computed`` on; None before the first.
    """

    lane: int
    row: int
    known_len: int
    slots: list[int] = field(default_factory=list)
    computed: int = 0
    chain: list[int] = field(default_factory=list)
    states: Tensor | None = None

    @property
    def held(self) -> int:
        """Positions whose keys and values are there."""
        return self.computed + len(self.chain)


class Seats:
    """The seats of a draft.

    Args:
        engine: of the draft.
        rows: of one request in a forward of the target, at most.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        """All free."""
        self._engine, self._rows = engine, rows
        self._taken: dict[Request, Seat | None] = {}

    def of(self, request: Request) -> Seat | None:
        """A running request's seat, taken when first asked for; None when it was given up."""
        if request not in self._taken:
            self._taken[request] = self._take(request)
        return self._taken[request]

    def grow(self, request: Request, seat: Seat, total: int) -> bool:
        """Slots for so many positions; False when the seat was given up instead."""
        missing = total - len(seat.slots)
        if missing <= 0:
            return True
        lane = self._engine.lanes[seat.lane]
        spare = lane.slots.available - self._rows * len(lane.scheduler.running)
        if total > self._engine.limits.pool.context or missing > spare:
            self.give_up(request)
            return False
        if seat.slots:
            seat.slots += lane.slots.alloc_after(seat.slots[-1], missing)
        else:
            assert request.limit is not None
            room = max(0, request.num_prompt + request.limit - missing)
            seat.slots = lane.slots.alloc(missing, room=room)
        return True

    def give_up(self, request: Request) -> None:
        """Free the request's seat; it has none until it runs anew."""
        self.release(request)
        self._taken[request] = None

    def release(self, request: Request) -> None:
        """The request runs no more."""
        seat = self._taken.pop(request, None)
        if seat is not None:
            self._free(seat)

    def _take(self, request: Request) -> Seat | None:
        lanes = self._engine.lanes
        rooms = [(len(lane.draft_rows), lane.slots.available) for lane in lanes]
        at = rooms.index(max(rooms))
        lane = lanes[at]
        if not lane.draft_rows:
            return None
        seat = Seat(at, heappop(lane.draft_rows), request.num_prompt)
        lane.guests[seat.row] = lambda: self.give_up(request)
        return seat

    def _free(self, seat: Seat) -> None:
        lane = self._engine.lanes[seat.lane]
        lane.guests.pop(seat.row, None)
        lane.slots.free(seat.slots)
        heappush(lane.draft_rows, seat.row)
