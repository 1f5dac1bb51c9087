"""PrefixTree: against a dictionary of every prefix that is held."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.runtime.prefix_tree import PrefixNode, PrefixTree, common_length

Prefix = tuple[int, ...]


def test_an_empty_tree_holds_the_empty_prefix() -> None:
    tree = PrefixTree()
    node = tree.lock([1, 2])
    assert node is tree.root and node.path_slots == []
    tree.unlock(node)
    assert tree.insert([], []) is tree.root
    assert (tree.num_tokens, tree.num_idle, tree.evict(0)) == (0, 0, [])


def test_sequences_part_at_any_token() -> None:
    tree = PrefixTree()
    tree.unlock(tree.insert([1, 2, 3, 4], [10, 11, 12, 13]))
    other = tree.insert([1, 2, 5], [20, 21, 22])
    assert other.path_slots == [10, 11, 22], "the first two were held: their slots count"
    assert tree.num_tokens == 5 and tree.num_idle == 2
    assert tree.lock([1, 2, 3]).path_slots == [10, 11, 12]
    assert tree.lock([1, 2, 3, 4, 9]).path_slots == [10, 11, 12, 13]
    assert tree.lock([2]).path_slots == []
    assert tree.num_idle == 0


def test_a_lock_holds_its_node_through_splits() -> None:
    tree = PrefixTree()
    locked = tree.insert([1, 2, 3, 4], [0, 1, 2, 3])
    tree.unlock(tree.lock([1]))
    tree.unlock(tree.insert([1, 2, 9], [4, 5, 6]))
    assert locked.path_slots == [0, 1, 2, 3]
    assert tree.evict(tree.num_idle) == [6]
    tree.unlock(locked)
    assert sorted(tree.evict(4)) == [0, 1, 2, 3] and not tree.num_tokens


def test_what_was_used_last_goes_last_and_from_its_end() -> None:
    tree = PrefixTree()
    for tokens, slots in (([1, 2, 3], [0, 1, 2]), ([4, 5], [3, 4]), ([1, 7], [9, 5])):
        tree.unlock(tree.insert(tokens, slots))
    tree.unlock(tree.lock([4, 5]))
    assert tree.evict(1) == [2], "[1, 2, 3] waits longest, the 1 is in use by [1, 7] too"
    assert tree.evict(2) == [1, 5]
    assert tree.lock([1, 2]).path_slots == [0], "what is left of them"
    assert sorted(tree.evict(2)) == [3, 4]
    assert tree.num_idle == 0 and tree.num_tokens == 1


@pytest.mark.parametrize("size", [0, 1, 2, 7, 64])
def test_common_length(size: int) -> None:
    one = list(range(size))
    for at in range(size):
        other = [*one[:at], -1, *one[at + 1 :]]
        assert common_length(one, other) == common_length(other, one) == at
        assert common_length(one, one[:at]) == at
    assert common_length(one, one) == size


class Held:
    """Every held prefix with its slot, who locks it, and when it was last let go of."""

    def __init__(self) -> None:
        self.slots: dict[Prefix, int] = {}
        self.locks: Counter[Prefix] = Counter()
        self.idle_since: dict[Prefix, int] = {}
        self.clock = 0

    def longest(self, tokens: Prefix) -> Prefix:
        at = next((n for n in range(len(tokens)) if tokens[: n + 1] not in self.slots), len(tokens))
        return tokens[:at]

    def lock(self, tokens: Prefix) -> None:
        self.locks.update(tokens[: n + 1] for n in range(len(tokens)))

    def unlock(self, tokens: Prefix) -> None:
        self.clock += 1
        for n in range(len(tokens)):
            prefix = tokens[: n + 1]
            self.locks[prefix] -= 1
            self.idle_since[prefix] = self.clock

    @property
    def idle(self) -> list[Prefix]:
        return [prefix for prefix in self.slots if not self.locks[prefix]]

    def evict(self) -> int:
        """The slot of the last token of what waits longest."""
        inner = {prefix[:-1] for prefix in self.slots}
        leaves = [prefix for prefix in self.idle if prefix not in inner]
        return self.slots.pop(min(leaves, key=lambda prefix: self.idle_since[prefix]))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("lock", "insert", "insert", "unlock", "evict")),
        st.lists(st.integers(0, 2), max_size=9).map(tuple),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_order_of_use(steps: list[tuple[str, Prefix, int]]) -> None:
    tree, held, numbers = PrefixTree(), Held(), count()
    locked: list[tuple[PrefixNode, Prefix]] = []
    for action, tokens, number in steps:
        if action == "lock":
            found = held.longest(tokens)
            locked.append((tree.lock(list(tokens)), found))
            held.lock(found)
        elif action == "insert":
            slots = [next(numbers) for _ in tokens]
            for at, slot in enumerate(slots):
                held.slots.setdefault(tokens[: at + 1], slot)
            locked.append((tree.insert(list(tokens), slots), tokens))
            held.lock(tokens)
        elif action == "unlock" and locked:
            node, found = locked.pop(number % len(locked))
            tree.unlock(node)
            held.unlock(found)
        elif action == "evict":
            amount = min(number, len(held.idle))
            gone = tree.evict(amount)
            assert sorted(gone) == sorted(held.evict() for _ in range(amount))
        assert tree.num_tokens == len(held.slots)
        assert tree.num_idle == len(held.idle)
        for node, found in locked:
            want = [held.slots[found[: at + 1]] for at in range(len(found))]
            assert node.path_slots == want
