"""Which hidden states of the target go to whose draft."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..request import Request
from ..step import Step


def hand_over(step: Step, requests: Sequence[Request], states: Tensor) -> None:
    """Give drafts the states of the rows that stand."""
    row = 0
    for request, first, size in zip(requests, step.prefix_lens, step.extend_lens, strict=True):
        if request.speculation is not None and request.reads_states and not request.finished:
            stand = states[row : row + request.computed - first]
            request.speculation.drafter.observe(request, first, stand)
        row += size
