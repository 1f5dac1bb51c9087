"""SlotAllocator: every slot has one owner, neighbours where possible."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import CapacityError
from archzoo.runtime.slots import FreeRuns, SlotAllocator


def test_lowest_run_first() -> None:
    slots = SlotAllocator(10)
    assert slots.alloc(3) == [0, 1, 2]
    assert slots.alloc(4) == [3, 4, 5, 6]
    slots.free([0, 1, 2])
    assert slots.alloc(2) == [0, 1]
    assert slots.available == 4


def test_a_run_is_preferred_to_lower_scattered_slots() -> None:
    slots = SlotAllocator(10)
    slots.alloc(10)
    slots.free([0, 2, 5, 6, 7])
    assert slots.alloc(3) == [5, 6, 7]


def test_scattered_slots_serve_when_there_is_no_run() -> None:
    slots = SlotAllocator(6)
    slots.alloc(6)
    slots.free([4, 0, 2])
    assert slots.alloc(3) == [0, 2, 4]
    assert slots.available == 0


def test_room_behind_a_prompt_is_left_to_its_owner() -> None:
    slots = SlotAllocator(20)
    first = slots.alloc(3, room=4)
    second = slots.alloc(3, room=2)
    assert (first, second) == ([0, 1, 2], [7, 8, 9])
    for expected in (3, 4, 5, 6):
        first += slots.alloc_after(first[-1])
        assert first[-1] == expected
    assert slots.alloc_after(first[-1]) == [12], "room is used up: the lowest open slot"
    assert slots.alloc_after(second[-1]) == [10]


def test_room_is_given_to_others_when_nothing_else_is_free() -> None:
    slots = SlotAllocator(6)
    slots.alloc(2, room=4)
    assert slots.available == 4
    assert slots.alloc(4) == [2, 3, 4, 5]
    assert slots.available == 0


def test_room_is_cut_to_what_is_free_and_returns_with_its_owner() -> None:
    slots = SlotAllocator(8)
    first = slots.alloc(2, room=100)
    assert first == [0, 1]
    slots.free(first)
    assert slots.available == 8
    assert slots.alloc(8) == list(range(8))


def test_room_of_one_who_left_is_like_any_other_slot() -> None:
    slots = SlotAllocator(16)
    slots.free(slots.alloc(2, room=4))
    assert slots.alloc(3) == [0, 1, 2]


def test_a_request_gets_a_run_that_holds_its_room_too() -> None:
    slots = SlotAllocator(12)
    slots.alloc(12)
    slots.free([0, 1, 2])
    slots.free([6, 7, 8, 9, 10])
    assert slots.alloc(2, room=3) == [6, 7]
    assert slots.alloc(2, room=3) == [0, 1], "no such run: one that holds the slots"


def test_several_slots_after_the_last() -> None:
    slots = SlotAllocator(12)
    first = slots.alloc(2, room=3)
    assert slots.alloc_after(first[-1], 2) == [2, 3], "out of the room"
    assert slots.alloc_after(3, 4) == [4, 5, 6, 7], "more than the room, open slots behind it"
    assert slots.alloc_after(7, 0) == []
    blocker = slots.alloc(2)
    assert blocker == [8, 9]
    assert slots.alloc_after(7, 2) == [10, 11]


def test_alloc_after_nothing_and_after_the_end() -> None:
    slots = SlotAllocator(3)
    assert slots.alloc_after(-1) == [0]
    assert slots.alloc_after(2) == [1]


def test_too_many_slots_name_both_numbers_and_take_nothing() -> None:
    slots = SlotAllocator(4)
    slots.alloc(1)
    for ask in (lambda: slots.alloc(5), lambda: slots.alloc_after(0, 5)):
        with pytest.raises(CapacityError, match=r"5 slots asked for, 3 of 4 are free"):
            ask()
    assert slots.available == 3
    assert slots.alloc(0) == []


@pytest.mark.parametrize(("count", "room"), [(-1, 0), (1, -1)])
def test_negative_sizes(count: int, room: int) -> None:
    with pytest.raises(CapacityError, match="< 0"):
        SlotAllocator(4).alloc(count, room)


@pytest.mark.parametrize("size", [0, -3])
def test_an_empty_pool(size: int) -> None:
    with pytest.raises(CapacityError, match=f"pool of {size} slots"):
        SlotAllocator(size)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1, 1], "twice"),
        ([3], "slot 3 is free"),
        ([99], "slot 99 is not"),
        ([-1], "slot -1 is not"),
    ],
)
def test_wrong_frees_change_nothing(bad: list[int], message: str) -> None:
    slots = SlotAllocator(5)
    taken = slots.alloc(3)
    with pytest.raises(CapacityError, match=message):
        slots.free([0, *bad])
    assert slots.available == 2
    slots.free(taken)
    with pytest.raises(CapacityError, match="free already"):
        slots.free(taken)


def test_free_runs_merge_on_both_sides() -> None:
    runs = FreeRuns()
    for start in (0, 4, 2):
        runs.add(start, start + 2)
    assert list(runs) == [(0, 6)]
    assert runs.total == 6


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 40))
def test_no_slot_has_two_owners_and_none_is_lost(seed: int, size: int) -> None:
    rng = random.Random(seed)
    slots, owners = SlotAllocator(size), []
    for _ in range(60):
        free = size - sum(map(len, owners))
        assert slots.available == free
        action = rng.random()
        if action < 0.4:
            count = rng.randint(0, free)
            owners.append(slots.alloc(count, room=rng.choice([0, 0, 1, 5, 50])))
            assert len(owners[-1]) == count
        elif action < 0.75 and owners and free:
            owner = rng.choice(owners)
            owner += slots.alloc_after(owner[-1] if owner else -1, rng.randint(1, min(free, 3)))
        elif owners:
            slots.free(owners.pop(rng.randrange(len(owners))))
        taken = [slot for owner in owners for slot in owner]
        assert len(set(taken)) == len(taken)
        assert all(0 <= slot < size for slot in taken)
    for owner in owners:
        slots.free(owner)
    assert slots.alloc(size) == list(range(size)), "one run again: nothing leaked, all merged"


class Hoard:
    """A reserve that can do without its slots, the last ones first."""

    def __init__(self, slots: SlotAllocator, count: int) -> None:
        self.allocator, self.slots = slots, slots.alloc(count)
        slots.reserve = self

    @property
    def evictable(self) -> int:
        return len(self.slots)

    def evict(self, count: int) -> None:
        gone, self.slots = self.slots[-count:], self.slots[:-count]
        self.allocator.free(gone)


def test_a_reserve_gives_what_is_missing_and_no_more() -> None:
    slots = SlotAllocator(8)
    hoard = Hoard(slots, 5)
    assert (slots.available, slots.free_slots) == (8, 3)
    assert slots.alloc(3) == [5, 6, 7] and hoard.evictable == 5
    assert slots.alloc_after(7) == [4] and hoard.evictable == 4
    with pytest.raises(CapacityError, match="5 slots asked for, 4 of 8"):
        slots.alloc(5)
    assert hoard.evictable == 4
    assert slots.alloc(4) == [0, 1, 2, 3] and slots.available == 0


def test_slots_right_behind_are_preferred_to_lower_and_longer_runs() -> None:
    slots = SlotAllocator(20)
    slots.alloc(20)
    slots.free([0, 1, 2, 3, 8, 9, 15, 16, 17, 18])
    assert slots.alloc(2, room=2, after=7) == [8, 9]
    assert slots.alloc(3, after=9) == [0, 1, 2], "taken there: anywhere"


def test_slots_given_back_may_stay_open_for_their_owner() -> None:
    slots = SlotAllocator(12)
    mine = slots.alloc(6, room=4)
    slots.free(mine[3:], room=7)
    assert slots.available == 9
    assert slots.alloc(2) == [10, 11], "others come last"
    assert slots.alloc_after(mine[2], 3) == [3, 4, 5]
    slots.free([3, 4, 5], room=0)
    assert slots.alloc(2) == [3, 4]
