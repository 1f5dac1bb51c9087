"""DraftLogits: a draft's head knows some tokens of its target's vocabulary; the others get -inf."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from archzoo.errors import WeightError
from archzoo.layers import BuildContext, LogitsProcessor
from archzoo.layers.logits import Head
from archzoo.parallel import ShardedParameter, plain_spec


class DraftLogits(LogitsProcessor):
    """Logits of the target's vocabulary from a head over a smaller one.

    Args:
        draft_size: Vd, rows of the head.
        vocab_size: V, tokens of the target.
        soft_cap: as in LogitsProcessor.
        ctx: device.

    Attributes:
        d2t: (Vd,) int64; draft token i is the target's token i + d2t[i].
        t2d: (V,) bool; whether the draft knows a token.
    """

    def __init__(
        self, draft_size: int, vocab_size: int, soft_cap: float | None, *, ctx: BuildContext
    ) -> None:
        """Maps that are not stored say that the two vocabularies are one."""
        super().__init__(draft_size, soft_cap)
        self._target_size = vocab_size
        same = draft_size == vocab_size
        self.d2t = _made(draft_size, torch.int64, same, ctx)
        self.t2d = _made(vocab_size, torch.bool, same, ctx)
        if same and not self.d2t.is_meta:
            self.d2t.data.zero_()
            self.t2d.data.fill_(True)

    @property
    def target_ids(self) -> Tensor:
        """(Vd,) int64, the target's token of each draft token."""
        return torch.arange(self.d2t.shape[0], device=self.d2t.device) + self.d2t

    def logits(self, rows: Tensor, head: Head) -> Tensor:
        """(S, D) hidden rows to (S, V) logits, -inf for tokens that the draft does not know."""
        known = super().logits(rows, head)
        every = known.new_full((known.shape[0], self._target_size), -torch.inf)
        return every.index_copy_(1, self.target_ids, known)

    def check(self) -> None:
        """Refuse maps that lead outside, twice to one token, or apart.

        Raises:
            WeightError: which token.
        """
        ids = self.target_ids
        outside = ((ids < 0) | (ids >= self._target_size)).nonzero()
        if len(outside):
            at = int(outside[0])
            raise WeightError(
                f"d2t[{at}] = {int(self.d2t[at])} makes draft token {at} the target's token "
                f"{int(ids[at])}, outside 0…{self._target_size - 1}; the head is of another target, "
                "or damaged"
            )
        uses = torch.bincount(ids, minlength=self._target_size)
        if int(uses.max()) > 1:
            token = int(uses.argmax())
            twice = (ids == token).nonzero().flatten().tolist()
            raise WeightError(
                f"d2t makes draft tokens {twice} all the target's token {token}; each leads to a "
                "token of its own: the head is damaged"
            )
        apart = ((uses > 0) != self.t2d).nonzero()
        if len(apart):
            token = int(apart[0])
            known = "knows" if bool(self.t2d[token]) else "does not know"
            raise WeightError(
                f"t2d says that the draft {known} token {token}, d2t says the opposite; the two maps "
                "are of different heads"
            )


def _made(size: int, dtype: torch.dtype, optional: bool, ctx: BuildContext) -> ShardedParameter:
    return ctx.make(replace(plain_spec((size,)), optional=optional), dtype)
