"""CausalLM: a decoder with a language-model head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from ..boundary import StageFacts, declare_head
from ..config import ModelConfig
from ..forward import ForwardBatch
from ..layers import (
    BuildContext,
    LogitsProcessor,
    LogitsProcessorOutput,
    ParallelLMHead,
    VocabParallelEmbedding,
)
from ..parallel import Elsewhere
from .base import DecoderBase
from .embedding import EmbeddingModel

EMBEDDING_WEIGHT, HEAD_WEIGHT = "model.embed_tokens.weight", "lm_head.weight"
"""The two parameters that a tied model shares."""


class CausalLM(DecoderBase):
    """A decoder with a language-model head, tied to the embedding where the config says so.

    Where they are on two pipeline stages, or the vocabulary is split differently over the two, a
    tied head fills its own rows from the checkpoint's embedding.

    Args:
        config, ctx, prefix: as in DecoderBase.

    Attributes:
        backbone: serves checkpoints of this name that were saved from the backbone and have no
            head, as embedding models are; None in a family without.
    """

    kind: ClassVar[str] = "a language model without a classification head"
    serves: ClassVar[tuple[str, ...]] = ("logits", "logprobs", "generate", "embed")
    backbone: ClassVar[type[EmbeddingModel] | None] = None

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__(config, ctx, prefix)
        shared = self._storage_to_share(ctx)
        self.lm_head = self.on_last_stage(
            "lm_head",
            lambda where: ParallelLMHead(
                self.head_size(config),
                config.hidden_size,
                parallel_group=ctx.head_group,
                tied_to=shared,
                ctx=ctx,
                prefix=where,
            ),
        )
        self.logits_processor = LogitsProcessor(config.vocab_size, config.final_logit_softcap)

    @classmethod
    def head_size(cls, config: ModelConfig) -> int:
        """Rows of the head; a draft model's may have fewer than the vocabulary."""
        return config.vocab_size

    @classmethod
    def head_facts(cls, ctx: BuildContext) -> StageFacts:
        """Rows of every attention group, unless the vocabulary is split over each of them."""
        return declare_head(rows="attn" if ctx.dp_lm_head else "all")

    @property
    def ties(self) -> Mapping[str, str]:
        """The tied head, on every stage; it has storage of its own where it cannot share."""
        return {HEAD_WEIGHT: EMBEDDING_WEIGHT} if self.config.tie_word_embeddings else {}

    def head(self, rows: Tensor) -> Tensor:
        """(S, D) hidden rows, after the final norm, to (S, V) float32 logits.

        Raises:
            SpoiltWeightsError, UnloadedWeightsError: as ``forward``.
        """
        self.weight_state.require()
        return self.logits_processor.logits(rows, self.lm_head)

    def untie(self) -> None:
        """Give a tied head storage of its own, with the embedding's values.

        From then on it is exported, and may be updated, by itself.
        """
        if not isinstance(self.lm_head, Elsewhere):
            self.lm_head.untie()
        self.config = replace(self.config, tie_word_embeddings=False)
        self.weight_state = self.weight_state.forget((EMBEDDING_WEIGHT, HEAD_WEIGHT))

    def _logits(self, rows: Tensor, own: slice, batch: ForwardBatch) -> LogitsProcessorOutput:
        return self.logits_processor.of_picked(rows, self.lm_head, batch, own)

    def _storage_to_share(self, ctx: BuildContext) -> VocabParallelEmbedding | None:
        """The embedding, where head and embedding are tied, both here, and split alike."""
        embedding = self.model.embed_tokens
        alike = ctx.group(ctx.head_group).ranks == ctx.group("attn_tp").ranks
        together = alike and self.model.stage.is_last
        if not (self.config.tie_word_embeddings and together) or isinstance(embedding, Elsewhere):
            return None
        return embedding
