"""Qwen2 and Qwen3: the attention that differs from Llama's, language models, backbones alone.

Reference implementations: ``transformers`` ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from archzoo.config import ConfigAdapter, ModelConfig
from archzoo.layers import BuildContext, RMSNorm
from archzoo.models import CausalLM, DecoderLayer, EmbeddingModel, GroupedQueryAttention, Reranking
from archzoo.weights import GGUF_NAMES, NameRules

from .adapters import QWEN2, QWEN3

RERANKING = Reranking(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>"
    "\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "Given a web search query, retrieve relevant passages that answer the query",
)
"""The prompt of Qwen3-Reranker's model card."""


class Qwen3Attention(GroupedQueryAttention):
    """Queries and keys are normalised head by head before they are rotated."""

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        """Build the attention of global layer ``layer_id``."""
        super().__init__(config, layer_id, ctx=ctx, prefix=prefix)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, config.rms_norm_eps, ctx=ctx, prefix=f"{prefix}.{name}")
            for name in ("q_norm", "k_norm")
        )

    def normalize(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """One weight of head_dim for all heads, so every rank holds it whole."""
        return _by_head(self.q_norm, q), _by_head(self.k_norm, k)


def _by_head(norm: RMSNorm, rows: Tensor) -> Tensor:
    """(T, N*H) rows, each head normalised by itself."""
    width = norm.weight.shape[0]
    normed: Tensor = norm(rows.view(len(rows), rows.shape[1] // width, width))
    return normed.flatten(1)


class Qwen3DecoderLayer(DecoderLayer):
    """Pre-norm layer with normalised queries and keys."""

    attention = Qwen3Attention


class Qwen2Model(EmbeddingModel):
    """The Qwen2 backbone alone, as an embedding model: last-token pooling."""

    layer = DecoderLayer
    adapter = QWEN2
    name_rules = {"gguf": GGUF_NAMES}


class Qwen3Model(Qwen2Model):
    """The Qwen3 backbone alone."""

    layer = Qwen3DecoderLayer
    adapter = QWEN3


class Qwen2ForCausalLM(CausalLM):
    """Qwen2 and Qwen2.5: Llama's layer with biases of q, k and v, windows switched on by config."""

    layer = DecoderLayer
    adapter: ClassVar[ConfigAdapter] = QWEN2
    name_rules: ClassVar[Mapping[str, NameRules]] = {"gguf": GGUF_NAMES}
    backbone: ClassVar[type[EmbeddingModel] | None] = Qwen2Model


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """Qwen3; also its embedding models and rerankers, which are saved under this name."""

    layer = Qwen3DecoderLayer
    adapter = QWEN3
    backbone = Qwen3Model
    reranking = RERANKING
