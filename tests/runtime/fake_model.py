"""A model that knows a sequence by reading its keys from a pool, as attention does."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from archzoo.runtime.scheduler import Scheduler
from archzoo.runtime.step import Step

VOCAB = 97


def next_token(tokens: Sequence[int]) -> int:
    digest = blake2b(repr(list(tokens)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def alone(prompt: Sequence[int], new: int, eos: frozenset[int] = frozenset()) -> list[int]:
    """What the model says to one prompt without any batching."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < new:
        tokens.append(next_token(tokens))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class FakeModel:
    """Keeps (position, token, turned long) in slots, and a slot table, and checks each step.

    Keys turn long where their row knows of more tokens than ``turning``; None: never.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        max_requests: int,
        max_context: int,
        turning: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cache: list[tuple[int, int, bool] | None] = [None] * scheduler.slots.num_slots
        self.table = [[-1] * max_context for _ in range(max_requests)]
        self.turning = max_context if turning is None else turning
        self.steps: list[Step] = []

    def check(self, step: Step) -> None:
        total = sum(step.extend_lens)
        assert len(step.input_ids) == len(step.new_slots) == len(step.positions) == total
        assert 0 < total <= self.scheduler.max_batch_tokens
        assert all(count > 0 for count in step.extend_lens)
        assert len(set(step.request_ids)) == len(step.request_ids)
        assert len(set(step.req_pool_indices)) == len(step.req_pool_indices)
        running, slots = self.scheduler.running, self.scheduler.slots
        shared = cached_slots(self.scheduler)
        own = [slot for request in running for slot in request.slots if slot not in shared]
        assert len(set(own)) == len(own), "a slot with two owners"
        assert len(own) + len(shared) + slots.free_slots == slots.num_slots, "a slot leaked"
        assert set(step.new_slots) <= set(own), "others read what is written"
        assert all(len(r.slots) == len(r.tokens) for r in running), "a slot for each token, no more"
        assert {r.request_id for r in running} >= set(step.request_ids)
        assert [r.request_id for r in running] == sorted(r.request_id for r in running)
        waiting = [r.request_id for r in self.scheduler.waiting]
        assert waiting == sorted(waiting)
        assert not waiting or not running or running[-1].request_id < waiting[0], "overtaken"

    def logits(self, step: Step) -> list[int]:
        """Write all rows, then read each request's sequence back through the table."""
        for slot, used in enumerate(self.scheduler.slots._used):
            if not used:
                self.cache[slot] = None
        for table_row, slots in step.borrowed_slots.items():
            self.table[table_row][: len(slots)] = slots
        sampled, row = [], 0
        for at, row_of_table in enumerate(step.req_pool_indices):
            table = self.table[row_of_table]
            for _ in range(step.extend_lens[at]):
                position, slot = step.positions[row], step.new_slots[row]
                long = step.known_lens[row] > self.turning
                self.cache[slot] = (position, step.input_ids[row], long)
                table[position] = slot
                row += 1
            if step.samples[at]:
                assert row - 1 == step.sample_rows[len(sampled)]
                length = step.prefix_lens[at] + step.extend_lens[at]
                cached = [self.cache[table[position]] for position in range(length)]
                assert [entry and entry[0] for entry in cached] == list(range(length))
                assert {entry and entry[2] for entry in cached} == {length > self.turning}
                sampled.append(next_token([entry[1] for entry in cached if entry]))
        return sampled

    def step(self) -> bool:
        step = self.scheduler.next_step()
        if step is None:
            return False
        self.steps.append(step)
        assert len(self.steps) < 10_000, "no end in sight"
        self.check(step)
        self.scheduler.finish_step(step, self.logits(step))
        return True

    def run(self) -> None:
        while self.step():
            pass


def cached_slots(scheduler: Scheduler) -> set[int]:
    """Slots that the prefix cache holds."""
    held, nodes = list[int](), [scheduler.cache._tree.root]
    while nodes:
        node = nodes.pop()
        held += node.slots
        nodes += node.children.values()
    assert len(set(held)) == len(held) == scheduler.cache.stats.held_tokens
    return set(held)
