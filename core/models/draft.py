"""DraftModel: a language model that drafts for another one, whose hidden states it reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from ..errors import InputError
from ..forward import ForwardBatch
from ..layers import LogitsProcessorOutput
from .causal_lm import CausalLM
from .hand_off import PPProxyTensors


class DraftModel(CausalLM):
    """A language model whose rows are a token beside what another model made of the token before.

    ::

        target   token i          ->  states i             (captured in its layers)
        draft    token i + 1, states i  ->  logits of token i + 2, a state of its own

    A row that has no states of the target yet, because its token is only expected, takes the
    draft's own state of the row before. ``generate(draft=…)`` of the target runs it.

    ``forward`` fuses what ``batch.tokens.beside`` gives into the rows that enter the residual
    stream; ``layer`` finds the embeddings of the ids in its place. Logits are of the target's
    vocabulary, -inf for tokens that are never proposed.
    """

    kind: ClassVar[str] = "a draft model"
    serves: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def target_states(self, layers: int) -> tuple[int, ...]:
        """Which hidden states of its target it reads, as ``set_aux_layers`` takes them.

        Args:
            layers: of the target.
        """

    @property
    @abstractmethod
    def target_width(self) -> int:
        """Features of a hidden state of its target."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """(T, W) states of the target side by side, or (T, D) own ones, to (T, D) rows."""

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        input_embeds: Tensor | None = None,
        get_embedding: bool = False,
        pp_proxy_tensors: Mapping[str, Tensor] | None = None,
    ) -> LogitsProcessorOutput | PPProxyTensors:
        """As every decoder's; see the class.

        Raises:
            InputError: the batch brings no hidden states, or as every decoder's.
        """
        if batch.tokens is None or batch.tokens.beside is None:
            raise InputError(
                f"{type(self).__name__} reads its target's hidden states, the batch brings none; "
                "fill in batch.tokens.beside, or run it by generate(draft=…) of its target"
            )
        embedded = self.model.embed(input_ids, input_embeds)
        rows = self.fuse(batch.tokens.beside)
        inner = replace(batch, tokens=replace(batch.tokens, beside=embedded))
        return super().forward(None, positions, inner, rows, get_embedding, pp_proxy_tensors)

    @classmethod
    def _refusal(cls, call: str) -> InputError:
        return InputError(
            f"{cls.__name__} is {cls.kind}; pass it to generate(draft=…) of its target, it does "
            f"not answer {call}()"
        )
