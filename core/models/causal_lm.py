"""CausalLM: a decoder with a language-model head."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..config import ModelConfig
from ..forward import ForwardBatch
from ..layers import BuildContext, LogitsProcessor, LogitsProcessorOutput, ParallelLMHead
from .base import DecoderBase, child_prefix


class CausalLM(DecoderBase):
    """A decoder with a language-model head, tied to the embedding where the config says so.

    Args:
        config, ctx, prefix: as in DecoderBase.
    """

    kind: ClassVar[str] = "a language model without a classification head"
    serves: ClassVar[tuple[str, ...]] = ("logits", "logprobs", "generate", "embed")

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__(config, ctx, prefix)
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            tied_to=self.model.embed_tokens if config.tie_word_embeddings else None,
            ctx=ctx,
            prefix=child_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(config.vocab_size, config.final_logit_softcap)

    def head(self, rows: Tensor) -> Tensor:
        """(S, D) hidden rows, after the final norm, to (S, V) float32 logits."""
        return self.logits_processor.logits(rows, self.lm_head)

    def _logits(self, hidden_states: Tensor, batch: ForwardBatch) -> LogitsProcessorOutput:
        output: LogitsProcessorOutput = self.logits_processor(hidden_states, self.lm_head, batch)
        return output
