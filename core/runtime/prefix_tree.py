"""A radix tree of token sequences whose keys and values are in slots of a KV pool.

A node holds a run of tokens and their slots; a path from the root spells a prefix. Sequences part
at any token: a node is split where they do. A lock on a node locks its path: nothing of it is
evicted. What nobody locks is idle, in the order in which it was let go of.

A node is let go of no earlier than its children, so the idle node that waits longest is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class PrefixNode:
    """A run of tokens behind its parent's.

    Args:
        parent: None for the root.
        tokens: of the run; empty for the root alone.
        slots: one for each token.
        locks: how many sequences use the run or one behind it.
    """

    __slots__ = ("children", "locks", "parent", "slots", "tokens")

    def __init__(
        self, parent: PrefixNode | None, tokens: list[int], slots: list[int], locks: int = 0
    ) -> None:
        """Without children."""
        self.parent, self.tokens, self.slots, self.locks = parent, tokens, slots, locks
        self.children: dict[int, PrefixNode] = {}

    @property
    def path_slots(self) -> list[int]:
        """Slots of every token from the root to the end of this run."""
        runs = [node.slots for node in self.to_root()]
        return [slot for run in reversed(runs) for slot in run]

    def to_root(self) -> Iterator[PrefixNode]:
        """This node, its parent, and so on; the root is left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Prefixes and their slots.

    Attributes:
        root: the empty prefix.
        num_tokens: tokens held.
        num_idle: of them, those that nobody locks.
    """

    def __init__(self) -> None:
        """Empty."""
        self.root = PrefixNode(None, [], [])
        self.num_tokens = self.num_idle = 0
        self._idle: OrderedDict[PrefixNode, None] = OrderedDict()

    def lock(self, tokens: list[int]) -> PrefixNode:
        """The node that spells the longest held prefix of tokens, locked; the root for none."""
        node, _ = self._find(tokens)
        self._lock(node)
        return node

    def insert(self, tokens: list[int], slots: Sequence[int]) -> PrefixNode:
        """Hold all of tokens; the node that spells them, locked.

        Args:
            tokens: a sequence from its first token on.
            slots: of each. Those of tokens that were held already stay the caller's, unless they
                are the very slots that are held.
        """
        node, at = self._find(tokens)
        if at < len(tokens):
            leaf = PrefixNode(node, tokens[at:], list(slots[at:]))
            node.children[tokens[at]] = leaf
            self.num_tokens += len(leaf.tokens)
            node = leaf
        self._lock(node)
        return node

    def unlock(self, node: PrefixNode) -> None:
        """Take a lock off again."""
        for each in node.to_root():
            each.locks -= 1
            if not each.locks:
                self._idle[each] = None
                self.num_idle += len(each.tokens)

    def evict(self, count: int) -> list[int]:
        """Slots of count idle tokens, longest idle first, which are held no more.

        Args:
            count: at most ``num_idle``.
        """
        freed: list[int] = []
        while len(freed) < count:
            leaf = next(iter(self._idle))
            keep = max(0, len(leaf.tokens) - (count - len(freed)))
            freed += leaf.slots[keep:]
            if not keep:
                self._remove(leaf)
            del leaf.tokens[keep:], leaf.slots[keep:]
        self.num_tokens -= len(freed)
        self.num_idle -= len(freed)
        return freed

    def _find(self, tokens: list[int]) -> tuple[PrefixNode, int]:
        """The node that spells the longest held prefix, and its length; whoever asks locks it."""
        node, at = self.root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            shared = common_length(child.tokens, tokens[at : at + len(child.tokens)])
            at += shared
            if shared < len(child.tokens):
                return self._split(child, shared), at
            node = child
        return node, at

    def _split(self, node: PrefixNode, at: int) -> PrefixNode:
        """Cut a node in two; the new upper part, which is not among the idle ones."""
        assert node.parent is not None
        upper = PrefixNode(node.parent, node.tokens[:at], node.slots[:at], node.locks)
        node.parent.children[upper.tokens[0]] = upper
        del node.tokens[:at], node.slots[:at]
        node.parent, upper.children[node.tokens[0]] = upper, node
        if not node.locks:
            self.num_idle -= at
        return upper

    def _lock(self, node: PrefixNode) -> None:
        for each in node.to_root():
            if each in self._idle:
                del self._idle[each]
                self.num_idle -= len(each.tokens)
            each.locks += 1

    def _remove(self, leaf: PrefixNode) -> None:
        assert leaf.parent is not None and not leaf.children
        del self._idle[leaf], leaf.parent.children[leaf.tokens[0]]


def common_length(one: list[int], other: list[int]) -> int:
    """How many leading tokens two sequences have in common."""
    same, most = 0, min(len(one), len(other))
    while same < most:  # halving: list comparison runs at the speed of memory
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same
