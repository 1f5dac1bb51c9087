"""Step: what one forward computes, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from torch import Tensor

from ..forward import ForwardMode


@dataclass(slots=True)
class Step:
    """The facts of one forward, plain numbers that can be sent to every rank.

    Rows of requests lie end to end, in the order of ``request_ids``. Decode rows come first.

    Args:
        mode: DECODE when every request goes on after an output with one token, TARGET_VERIFY when
            some of those have a proposal, EXTEND when none goes on, MIXED else. One that is admitted
            again does not go on.
        request_ids: the requests.
        req_pool_indices: row of the slot table, for each request.
        prefix_lens: tokens in the cache before this forward, for each request.
        extend_lens: tokens of this forward, for each request.
        known_lens: for each row, tokens known of its sequence when the row was first computed: the
            whole prompt for its rows, then one more each. Equal when a row is computed again.
        samples: how many of the last rows give a token, for each request: one more than its
            proposal is long, 0 while its prompt is not through.
        input_ids: tokens, for each row.
        new_slots: slot each row's keys and values go to, for each row.
        borrowed_slots: slots of the cached prefix, by row of the slot table, of requests that begin
            with one in this forward.
        beside: (rows, W) numbers that a draft model reads beside the ids; None for other models.
    """

    mode: ForwardMode = ForwardMode.DECODE
    request_ids: list[int] = field(default_factory=list)
    req_pool_indices: list[int] = field(default_factory=list)
    prefix_lens: list[int] = field(default_factory=list)
    extend_lens: list[int] = field(default_factory=list)
    known_lens: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    input_ids: list[int] = field(default_factory=list)
    new_slots: list[int] = field(default_factory=list)
    borrowed_slots: dict[int, list[int]] = field(default_factory=dict)
    beside: Tensor | None = field(default=None, compare=False)

    @property
    def positions(self) -> list[int]:
        """Position of each row in its sequence."""
        if self.mode is ForwardMode.DECODE:
            return self.prefix_lens
        lens = zip(self.prefix_lens, self.extend_lens, strict=True)
        return [at for prefix, extend in lens for at in range(prefix, prefix + extend)]

    @property
    def sample_rows(self) -> list[int]:
        """Rows whose logits are wanted."""
        ends = accumulate(self.extend_lens)
        last = zip(ends, self.samples, strict=True)
        return [row for end, count in last for row in range(end - count, end)]

    @property
    def proposals(self) -> list[list[int]]:
        """Tokens of each request that are only expected; its last rows."""
        ends = accumulate(self.extend_lens)
        last = zip(ends, self.samples, strict=True)
        return [self.input_ids[end - max(0, count - 1) : end] for end, count in last]


def idle_step() -> Step:
    """No rows: the ranks of an attention group only take part in collectives."""
    return Step(ForwardMode.IDLE)
