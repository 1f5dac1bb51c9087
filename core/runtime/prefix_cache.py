"""PrefixCache: requests share the slots of tokens that they begin with.

A slot is free, held by one sequence, or in the tree. A sequence locks the part of the tree that it
reads; what nobody locks can be evicted, and counts as available. The tree follows from the requests
and their order alone, so all ranks hold the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .prefix_tree import PrefixNode, PrefixTree, common_length
from .request import Request
from .slots import SlotAllocator

WORTH_WAITING = 128
"""Tokens worth waiting for until another request has computed them: a forward over fewer mostly
reads its weights, so that one more forward would cost what is saved."""


@dataclass(frozen=True)
class CacheStats:
    """What the prefix cache has done, in tokens.

    Args:
        prompt_tokens: of prompts that were looked up.
        cached_tokens: of them, those that were found and not computed again.
        evicted_tokens: given up for others' slots.
        held_tokens: in the cache now.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    evicted_tokens: int = 0
    held_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found; 0 before the first prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @staticmethod
    def total(parts: Iterable[CacheStats]) -> CacheStats:
        """Of several caches together."""
        rows = [(p.prompt_tokens, p.cached_tokens, p.evicted_tokens, p.held_tokens) for p in parts]
        return CacheStats(*map(sum, zip(*rows, strict=True)))


class PrefixCache:
    """Prefixes of sequences in one pool.

    Args:
        slots: the pool's; it evicts from here when it runs dry.
        limit: leading tokens of a sequence that can be shared; 0 shares nothing. The keys of
            sequences that are known to be longer are turned by that, so they share nothing either.
    """

    def __init__(self, slots: SlotAllocator, limit: int) -> None:
        """Nothing is held."""
        self._slots, self._limit, self._tree = slots, limit, PrefixTree()
        self._asked = self._found = self._evicted = 0
        slots.reserve = self

    @property
    def evictable(self) -> int:
        """Slots that can be had back."""
        return self._tree.num_idle

    @property
    def stats(self) -> CacheStats:
        """What was done so far."""
        return CacheStats(self._asked, self._found, self._evicted, self._tree.num_tokens)

    def borrow(self, tokens: Sequence[int], known_len: int, most: int) -> PrefixNode:
        """Lock the longest held prefix of a sequence; the empty one when none is held.

        Args:
            tokens: the sequence.
            known_len: tokens by which its keys turn at least.
            most: tokens it can use; those behind must be computed.
        """
        return self._tree.lock(list(tokens[: min(most, self.shareable(known_len))]))

    def shareable(self, known_len: int) -> int:
        """Leading tokens that a sequence can share, by the length that its keys turn by at least."""
        return self._limit if known_len <= self._limit else 0

    def is_coming(
        self, request: Request, found: int, most: int, running: Iterable[Request]
    ) -> bool:
        """Whether many tokens that a request could borrow are just being computed.

        Args:
            request: not admitted yet.
            found: tokens that it could borrow now.
            most: tokens it can use.
            running: requests under way.
        """
        least = found + WORTH_WAITING
        if min(most, self.shareable(request.known_len)) < least:
            return False
        under_way = (other for other in running if not other.num_output)
        return any(
            self.shareable(other.known_len) >= least
            and common_length(other.tokens, request.tokens) >= least
            for other in under_way
        )

    def give_back(self, lease: PrefixNode) -> None:
        """Unlock what a sequence borrowed that got no slots of its own."""
        self._tree.unlock(lease)

    def record(self, num_prompt: int, found: int) -> None:
        """Count a prompt, and how many of its tokens were borrowed."""
        if self._limit:
            self._asked += num_prompt
            self._found += found

    def publish(
        self, tokens: Sequence[int], slots: Sequence[int], known_len: int, lease: PrefixNode
    ) -> PrefixNode:
        """Hold computed tokens of a sequence for others too; it goes on using them.

        Args:
            tokens: those that are computed.
            slots: of each; those that are held from now on belong to the cache.
            known_len: tokens by which its keys turn at least.
            lease: what the sequence had locked; replaced by what is returned.
        """
        count = min(len(tokens), self.shareable(known_len))
        if not count:
            return lease
        wider = self._tree.insert(list(tokens[:count]), slots[:count])
        self._tree.unlock(lease)
        return wider

    def release(self, slots: Sequence[int], lease: PrefixNode) -> None:
        """A sequence ends: free those of its slots that the cache does not hold.

        Args:
            slots: of the sequence, in order.
            lease: what it had locked.
        """
        if slots:
            self._slots.give_up_room(slots[-1] + 1)
        held = set(lease.path_slots)
        self._slots.free([slot for slot in slots if slot not in held])
        self._tree.unlock(lease)

    def evict(self, count: int) -> None:
        """Free so many slots, at most ``evictable``; those that were idle longest."""
        self._evicted += count
        self._slots.free(self._tree.evict(count))

    def clear(self) -> None:
        """Hold nothing any more but what sequences under way use."""
        self._slots.free(self._tree.evict(self.evictable))
