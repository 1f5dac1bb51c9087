"""DraftForward: one forward of a draft, put together request by request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...forward import ForwardMode
from ..choosing import Choice, Choosable
from ..engine import Engine
from ..request import Request
from ..step import Step, idle_step
from .seats import Seat


@dataclass
class Job:
    """What a draft does for one request before a step of its target.

    Args:
        request: whose.
        seat: where.
        end: positions to compute from tokens that stand.
        count: tokens to propose; 0 while the prompt is not through.
        state: (1, D), the draft's own of its last row; None for a draft that reads none.
    """

    request: Request
    seat: Seat
    end: int
    count: int
    state: Tensor | None = None

    @property
    def rest(self) -> int:
        """Positions yet to compute."""
        return self.end - self.seat.computed


class Found(NamedTuple):
    """What came of a job's rows.

    Args:
        job: whose.
        rows: how many.
        token: of the last row, where one was wanted; -1 where nothing can be chosen.
        state: (1, D), the draft's own of the last row; None for a draft that gives none.
    """

    job: Job
    rows: int
    token: int | None
    state: Tensor | None


class DraftForward:
    """One forward.

    Args:
        engine: of the draft.
        mode: of its rows.
        choosable: ids that may be proposed; None for all.
    """

    def __init__(self, engine: Engine, mode: ForwardMode, choosable: Choosable | None) -> None:
        """No rows yet."""
        self._engine, self._choosable = engine, choosable
        self._steps = [Step(mode) for _ in engine.lanes]
        self._jobs: list[list[Job]] = [[] for _ in engine.lanes]
        self._choices: list[list[Choice]] = [[] for _ in engine.lanes]
        self._beside: list[list[Tensor]] = [[] for _ in engine.lanes]

    def room(self, job: Job) -> int:
        """Rows that may still be added beside those of a job's lane."""
        lane = job.seat.lane
        return self._engine.lanes[lane].scheduler.max_batch_tokens - len(
            self._steps[lane].input_ids
        )

    def add(self, job: Job, ids: Sequence[int], samples: bool, beside: Tensor | None) -> None:
        """Rows of a job, at the positions that follow what its seat holds.

        Args:
            job: whose.
            ids: their tokens.
            samples: the last one gives a token.
            beside: (rows, W), what the draft reads beside ids; None for one that reads nothing.
        """
        request, seat = job.request, job.seat
        step, start = self._steps[seat.lane], seat.held
        positions = range(start, start + len(ids))
        step.request_ids.append(request.request_id)
        step.req_pool_indices.append(seat.row)
        step.prefix_lens.append(start)
        step.extend_lens.append(len(ids))
        step.known_lens += [max(seat.known_len, at + 1) for at in positions]
        step.samples.append(int(samples))
        step.input_ids += ids
        step.new_slots += seat.slots[start : positions.stop]
        self._jobs[seat.lane].append(job)
        if samples:
            place = request.num_output + len(request.proposal)
            self._choices[seat.lane].append(Choice(request.params, place))
        if beside is not None:
            self._beside[seat.lane].append(beside)

    def run(self) -> list[Found]:
        """Compute; what came of each job, in lanes' order."""
        width = next((parts[0].shape[-1] for parts in self._beside if parts), None)
        steps = [step if step.input_ids else idle_step() for step in self._steps]
        if width is not None:
            for step, parts in zip(steps, self._beside, strict=True):
                step.beside = torch.cat(parts) if parts else torch.empty(0, width)
        read = width is not None
        tokens, states = self._engine.choose(steps, self._choices, read, self._choosable)
        found: list[Found] = []
        for lane, step in enumerate(self._steps):
            own = states[lane] if states else None
            found += _found(step, self._jobs[lane], tokens[lane], own)
        return found


def _found(
    step: Step, jobs: Sequence[Job], tokens: Sequence[int], states: Tensor | None
) -> Iterator[Found]:
    """The last row of each job of a lane."""
    token, end = iter(tokens), 0
    for job, size, samples in zip(jobs, step.extend_lens, step.samples, strict=True):
        end += size
        state = None if states is None else states[end - 1 : end]
        yield Found(job, size, next(token) if samples else None, state)
