"""ScoringPass: prompts that hold slots and are computed once, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..forward import ForwardMode
from ..layers import LogitsProcessorOutput
from .lanes import Lane
from .prefix_tree import PrefixNode
from .runner import Wanted
from .step import Step, idle_step

Forward = Callable[[Sequence[Step], Sequence[Wanted]], Sequence[LogitsProcessorOutput]]
"""One forward on every rank: the output of each attention group."""


@dataclass
class _Scored:
    """One prompt, where it is, and how far."""

    prompt: Sequence[int]
    lane: Lane
    table_row: int
    lease: PrefixNode
    slots: list[int] = field(default_factory=list)
    borrowed: int = 0
    computed: int = 0

    def rows(self, start: int, stop: int) -> range:
        """Positions of start to stop that the prompt has and did not borrow."""
        return range(max(start, self.borrowed), min(stop, len(self.prompt)))


class ScoringPass:
    """Prompts that are scored together.

    Args:
        lanes: of the attention groups; prompts are dealt out to them in turn.
        first_row: of the slot table's rows that are kept for scoring.
        forward: runs a step of each group.
    """

    def __init__(self, lanes: Sequence[Lane], first_row: int, forward: Forward) -> None:
        """No prompt yet."""
        self._lanes, self._first_row, self._forward = lanes, first_row, forward
        self._scored: list[_Scored] = []

    def take(
        self, prompts: Sequence[Sequence[int]], borrowable: Sequence[int], force: bool
    ) -> None:
        """Take slots for prompts, borrowed ones first, of running requests last.

        Args:
            prompts, borrowable: as in ``Engine.scoring``.
            force: as in ``Scheduler.put_back``.

        Raises:
            CapacityError: fewer are available. Those taken so far are for ``give_back``.
        """
        for at, (prompt, most) in enumerate(zip(prompts, borrowable, strict=True)):
            lane = self._lanes[at % len(self._lanes)]
            lease = lane.cache.borrow(prompt, len(prompt), most)
            borrowed = lease.path_slots
            found = len(borrowed)
            scored = _Scored(prompt, lane, self._first_row + at, lease, borrowed, found, found)
            self._scored.append(scored)
            last = borrowed[-1] if borrowed else None
            while len(prompt) - found > lane.slots.available and (
                lane.make_room() or lane.scheduler.put_back(force)
            ):
                pass
            scored.slots = borrowed + lane.slots.alloc(len(prompt) - found, after=last)
            if most:
                lane.cache.record(len(prompt), found)

    def give_back(self) -> None:
        """Leave what is computed to the prefix cache, and free the rest."""
        for scored in self._scored:
            cache, prompt = scored.lane.cache, scored.prompt
            done = prompt[: scored.computed]
            lease = cache.publish(done, scored.slots, len(prompt), scored.lease)
            cache.release(scored.slots, lease)
        self._scored.clear()

    @property
    def start(self) -> int:
        """The first position that some prompt has to compute."""
        return min(scored.borrowed for scored in self._scored)

    def row_counts(self, members: Sequence[int], start: int, stop: int) -> list[int]:
        """How many of the positions start to stop each of some prompts computes."""
        return [len(self._scored[at].rows(start, stop)) for at in members]

    def forward(
        self, start: int, stop: int, want: Callable[[Sequence[int]], Wanted]
    ) -> list[tuple[list[int], LogitsProcessorOutput]]:
        """Rows start to stop of every prompt that computes some.

        Args:
            start, stop: positions.
            want: what is wanted of some prompts, given by index, whose rows lie end to end.

        Returns:
            For every attention group the prompts it computed, and its output; nothing where no
            prompt has such a row.
        """
        groups = len(self._lanes)
        members = [
            [
                at
                for at in range(group, len(self._scored), groups)
                if self._scored[at].rows(start, stop)
            ]
            for group in range(groups)
        ]
        if not any(members):
            return []
        steps = [self._step(each, start, stop) for each in members]
        outputs = self._forward(steps, [want(each) for each in members])
        for each in members:
            for at in each:
                self._scored[at].computed = self._scored[at].rows(start, stop).stop
        return list(zip(members, outputs, strict=True))

    def _step(self, members: Sequence[int], start: int, stop: int) -> Step:
        step = Step(ForwardMode.EXTEND) if members else idle_step()
        for at in members:
            scored = self._scored[at]
            rows, length = scored.rows(start, stop), len(scored.prompt)
            step.request_ids.append(at)
            step.req_pool_indices.append(scored.table_row)
            step.prefix_lens.append(rows.start)
            step.extend_lens.append(len(rows))
            step.known_lens += [length] * len(rows)
            step.samples.append(rows.stop == length)
            step.input_ids += scored.prompt[rows.start : rows.stop]
            step.new_slots += scored.slots[rows.start : rows.stop]
            if 0 < rows.start == scored.borrowed:
                step.borrowed_slots[scored.table_row] = scored.slots[: rows.start]
        return step
