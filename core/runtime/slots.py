"""Who owns which slot of the KV pool.

Attention reads a request's keys fastest when its slots are neighbours, so a request gets one run
where there is one, and the slots behind its prompt are kept open for its own decode tokens as long
as nobody needs them. Neighbourhood is a wish, never a condition: any free slot serves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..errors import CapacityError


class FreeRuns:
    """Disjoint runs ``[start, stop)`` of free slots, sorted, neighbours merged."""

    def __init__(self) -> None:
        """No free slot."""
        self._starts: list[int] = []
        self._stops: dict[int, int] = {}
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every run, lowest first."""
        return ((start, self._stops[start]) for start in self._starts)

    def size_at(self, start: int) -> int:
        """Slots of the run that begins exactly at start; 0 if none does."""
        return self._stops.get(start, start) - start

    def first_fit(self, count: int) -> int | None:
        """Start of the lowest run that holds count slots, or None."""
        return next((start for start in self._starts if self._stops[start] - start >= count), None)

    def add(self, start: int, stop: int) -> None:
        """Put a run in that touches no slot of another."""
        self.total += stop - start
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == stop:
            stop = self._stops.pop(self._starts.pop(at))
        if at and self._stops[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
        else:
            self._starts.insert(at, start)
        self._stops[start] = stop

    def take(self, start: int, count: int) -> None:
        """Remove the first count slots of the run that begins at start."""
        at = bisect_left(self._starts, start)
        stop = self._stops.pop(start)
        self.total -= count
        if start + count == stop:
            del self._starts[at]
        else:
            self._starts[at] = start + count
            self._stops[start + count] = stop


class Reserve(Protocol):
    """Who holds slots of a pool that it can do without."""

    @property
    def evictable(self) -> int:
        """How many."""
        ...

    def evict(self, count: int) -> None:
        """Free so many of them."""
        ...


class SlotAllocator:
    """Hands out the slots of a pool and takes them back.

    Args:
        num_slots: S; slots are numbered 0 to S - 1.

    Attributes:
        reserve: asked for slots when none is free; None for nobody.

    Raises:
        CapacityError: fewer than one slot.
    """

    def __init__(self, num_slots: int) -> None:
        """All slots free."""
        if num_slots < 1:
            raise CapacityError(f"a pool of {num_slots} slots holds nothing; give it at least 1")
        self.num_slots = num_slots
        self._used = bytearray(num_slots)
        self._open = FreeRuns()
        self._open.add(0, num_slots)
        # Free too, but kept for the request whose slots end right before; given to others last.
        self._rooms: dict[int, int] = {}
        self._in_rooms = 0
        self.reserve: Reserve | None = None

    @property
    def available(self) -> int:
        """Slots that can be had: free ones, kept room included, and those of the reserve."""
        return self.free_slots + (0 if self.reserve is None else self.reserve.evictable)

    @property
    def free_slots(self) -> int:
        """Slots nobody holds, kept room included."""
        return self._open.total + self._in_rooms

    def alloc(self, count: int, room: int = 0, after: int | None = None) -> list[int]:
        """Take count slots: the lowest run that holds them, else scattered ones.

        Args:
            count: slots wanted now.
            room: slots the caller expects to want later. A run that holds both is preferred, and
                what lies behind the slots taken stays free but is given to others last.
            after: slots right behind this one are preferred to all others.

        Raises:
            CapacityError: fewer than count slots are available. Nothing is taken.
        """
        if count < 0 or room < 0:
            raise CapacityError(f"{count} slots with room for {room} asked for; neither can be < 0")
        if count > self.available:
            raise CapacityError(
                f"{count} slots asked for, {self.available} of {self.num_slots} are free; "
                "wait for a request to finish, or give the pool more slots"
            )
        if not count:
            return []
        if self.reserve is not None and count > self.free_slots:
            self.reserve.evict(count - self.free_slots)
        start = self._find_run(count, room, after)
        slots = self._scatter(count) if start is None else self._take_run(start, count)
        if room:
            self._keep_room(slots[-1] + 1, room)
        return slots

    def alloc_after(self, last: int, count: int = 1) -> list[int]:
        """Take count slots, those right behind slot ``last`` if they are free.

        Args:
            last: the caller's last slot; a negative number for none.
            count: slots wanted.

        Raises:
            CapacityError: fewer than count slots are available. Nothing is taken.
        """
        start = last + 1
        if count < 1:
            return self.alloc(count)
        if self._rooms.get(start, start) - start >= count:
            return self._take_from_room(start, count)
        self.give_up_room(start)
        if self._open.size_at(start) >= count:
            return self._take_run(start, count)
        return self.alloc(count)

    def free(self, slots: Sequence[int], room: int = 0) -> None:
        """Give slots back, and any room kept behind them.

        Args:
            slots: taken before.
            room: slots from the lowest of these on that the caller expects to want again; as in
                ``alloc``.

        Raises:
            CapacityError: a slot that is not taken, or is named twice. Nothing is given back.
        """
        if not slots:
            return
        self._check_taken(slots)
        for slot in slots:
            self.give_up_room(slot + 1)
        ordered = sorted(slots)
        start = previous = ordered[0]
        for slot in ordered[1:]:
            if slot != previous + 1:
                self._release(start, previous + 1)
                start = slot
            previous = slot
        self._release(start, previous + 1)
        if room:
            self._keep_room(ordered[0], room)

    def give_up_room(self, start: int) -> None:
        """Let others have the room that begins at a slot, if any does."""
        stop = self._rooms.pop(start, start)
        if stop > start:
            self._in_rooms -= stop - start
            self._open.add(start, stop)

    def _check_taken(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if not 0 <= slot < self.num_slots:
                raise CapacityError(
                    f"slot {slot} is not of this pool of {self.num_slots}; "
                    "free what alloc gave, to the allocator that gave it"
                )
            if not self._used[slot]:
                raise CapacityError(f"slot {slot} is free already; free each slot once")
        if len(set(slots)) != len(slots):
            raise CapacityError(f"{len(slots)} slots to free hold a slot twice; free each once")

    def _release(self, start: int, stop: int) -> None:
        self._used[start:stop] = bytes(stop - start)
        self._open.add(start, stop)

    def _take_run(self, start: int, count: int) -> list[int]:
        self._open.take(start, count)
        self._used[start : start + count] = b"\x01" * count
        return list(range(start, start + count))

    def _find_run(self, count: int, room: int, after: int | None) -> int | None:
        """The run behind a slot, or the lowest for count and room, for count, or without rooms."""
        if after is not None and self._open.size_at(after + 1) >= count:
            return after + 1
        for size in (count + room, count):
            start = self._open.first_fit(size)
            if start is not None:
                return start
        for kept in list(self._rooms):
            self.give_up_room(kept)
        return self._open.first_fit(count)

    def _scatter(self, count: int) -> list[int]:
        slots: list[int] = []
        for start, stop in list(self._open):
            slots += self._take_run(start, min(stop - start, count - len(slots)))
            if len(slots) == count:
                break
        return slots

    def _keep_room(self, start: int, room: int) -> None:
        size = min(room, self._open.size_at(start))
        if size:
            self._open.take(start, size)
            self._rooms[start] = start + size
            self._in_rooms += size

    def _take_from_room(self, start: int, count: int) -> list[int]:
        stop, after = self._rooms.pop(start), start + count
        if after < stop:
            self._rooms[after] = stop
        self._in_rooms -= count
        self._used[start:after] = b"\x01" * count
        return list(range(start, after))
