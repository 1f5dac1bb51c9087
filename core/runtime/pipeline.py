"""StageRunner: one rank's part in a pipeline; micro-batches come in, are computed and handed on.

Every rank of a stage sends to the rank of the same tp number in the next stage the residual rows
that the plan leaves with it: its attention group's, or a slice of them. Stages overlap because a
stage turns to the next micro-batch as soon as it has handed one on; nobody waits for results before
the last micro-batch is through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Literal, NamedTuple

from torch import Tensor

from ..layers import InputLogprobs, LogitsProcessorOutput
from ..models import PPProxyTensors
from ..parallel import Group
from ..parallel.rows import GroupRows
from .micro_batches import count_for, join, spread_out
from .runner import Runner, Wanted
from .step import Step

_LOGPROBS = fields(InputLogprobs)

Action = Literal["take", "run", "give"]


class StageEvent(NamedTuple):
    """Something a rank has done.

    Args:
        stage: index of its pipeline stage.
        action: took a micro-batch from the stage before, ran it, gave it to the next stage.
        micro_batch: which one of the step.
    """

    stage: int
    action: Action
    micro_batch: int


class StageRunner:
    """One rank of one pipeline stage.

    Args:
        runner: the rank's model, pool and backend.
        group: the ranks of equal tp number, one for each stage.
        asked: micro-batches of a step at most; None decides by its rows.
    """

    def __init__(self, runner: Runner, group: Group, asked: int | None = None) -> None:
        self.runner, self.group, self._asked = runner, group, asked
        self._log: list[StageEvent] | None = None

    def forward(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> LogitsProcessorOutput | None:
        """Run this stage's part of a step.

        Args:
            steps, wanted: of each attention group.

        Returns:
            On the last stage the output of this rank's attention group; None before it.
        """
        outputs: list[LogitsProcessorOutput] = []
        for at, parts in enumerate(self._micro_batches(steps, wanted)):
            rows = self.runner.rows([step for step, _ in parts], [wish for _, wish in parts])
            own = parts[self.runner.group_index]
            proxies = self._take(at, rows) if self.group.rank else None
            result = self.runner.forward(*own, rows, proxies)
            self._note("run", at)
            if isinstance(result, PPProxyTensors):
                self._give(at, result)
            else:
                outputs.append(result)
        return join(outputs) if outputs else None

    def _micro_batches(
        self, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[list[tuple[Step, Wanted]]]:
        """For every micro-batch the part of each attention group, which may have no rows."""
        longest = max(len(step.input_ids) for step in steps)
        parts = count_for(longest, self.group.size, self._asked)
        return list(map(list, zip(*spread_out(steps, wanted, parts), strict=True)))

    @contextmanager
    def recording(self, log: list[StageEvent]) -> Iterator[None]:
        """Note what happens, in order, in a list that other stages may share."""
        self._log = log
        try:
            yield
        finally:
            self._log = None

    def _take(self, micro_batch: int, rows: GroupRows) -> PPProxyTensors:
        like = self.runner.module.model.proxies_like(rows, self.runner.device)
        before = self.group.rank - 1
        taken = PPProxyTensors(
            {name: self.group.recv(tensor, before) for name, tensor in like.items()}
        )
        self._note("take", micro_batch)
        return taken

    def _give(self, micro_batch: int, proxies: PPProxyTensors) -> None:
        for tensor in proxies.values():
            self.group.send(tensor, self.group.rank + 1)
        self._note("give", micro_batch)

    def _note(self, action: Action, micro_batch: int) -> None:
        if self._log is not None:
            self._log.append(StageEvent(self.group.rank, action, micro_batch))


def to_tensors(output: LogitsProcessorOutput | None, aux: int) -> list[Tensor | None]:
    """An output as a flat list, always of one length; nothing where there is no output.

    Args:
        output: of a forward.
        aux: hidden states that ride along.
    """
    whole = output or LogitsProcessorOutput()
    logprobs = whole.input_logprobs
    return [
        whole.next_token_logits,
        whole.pooled,
        *(None if logprobs is None else getattr(logprobs, each.name) for each in _LOGPROBS),
        *(whole.aux_hidden_states or [None] * aux),
    ]


def from_tensors(tensors: Sequence[Tensor | None]) -> LogitsProcessorOutput:
    """The output that a flat list stands for."""
    logits, pooled, *parts = tensors
    here = [part for part in parts if part is not None]
    first = len(_LOGPROBS) if parts[0] is not None else 0
    logprobs = InputLogprobs(*here[:first]) if first else None
    return LogitsProcessorOutput(logits, logprobs, pooled, tuple(here[first:]))
