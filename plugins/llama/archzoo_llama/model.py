"""Llama and its close relatives: the layer, language models, and the backbone alone.

Reference implementations: ``transformers`` ``LlamaForCausalLM``, ``MistralForCausalLM``,
``Phi3ForCausalLM``; InternLM3 and IQuest-Coder are Llama there too, under their own configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from archzoo.config import ConfigAdapter, ModelConfig
from archzoo.forward import ForwardBatch
from archzoo.layers import (
    BuildContext,
    QKVParallelLinear,
    RadixAttention,
    RotaryRows,
    RowParallelLinear,
    get_rope,
)
from archzoo.models import CausalLM, DecoderLayer, EmbeddingModel
from archzoo.weights import NameRules

from .adapters import INTERNLM3, IQUESTCODER, LLAMA, MISTRAL, PHI3
from .names import BACKBONE, GGUF


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions.

    Shapes:
        hidden_states: (T, D); returns (T, D), partial over ``attn_tp``.
    """

    parallel_group: ClassVar[str] = "attn_tp"
    reduce_results: ClassVar[bool] = False
    """Whether it completes its own sum; only where no stage boundary does."""

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        """Build the attention of global layer ``layer_id``."""
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.attention_bias,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.qkv_proj",
        )
        self.rotary_emb = get_rope(config.rope_for(layer_id), dtype=ctx.dtype, device=ctx.device)
        self.attn = RadixAttention.of(
            self.qkv_proj.heads,
            config.head_dim,
            layer_id,
            sliding_window=config.window(layer_id),
            logit_cap=config.attn_logit_softcap,
            prefix=f"{prefix}.attn",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=config.o_proj_bias,
            reduce_results=self.reduce_results,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.o_proj",
            input_name="num_attention_heads * head_dim",
        )

    def forward(
        self, positions: Tensor | RotaryRows, hidden_states: Tensor, batch: ForwardBatch
    ) -> Tensor:
        """Project, rotate, attend, project back."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.qkv_proj.local_sizes, dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        out: Tensor
        out, _ = self.o_proj(self.attn(q, k, v, batch))
        return out


class LlamaDecoderLayer(DecoderLayer):
    """Pre-norm layer: attention, then a gated MLP."""

    attention = LlamaAttention


class LlamaForCausalLM(CausalLM):
    """Llama 1 to 3 and checkpoints of the same shape (SmolLM2, TinyLlama, …)."""

    layer = LlamaDecoderLayer
    adapter: ClassVar[ConfigAdapter] = LLAMA
    name_rules: ClassVar[Mapping[str, NameRules]] = {"gguf": GGUF}


class LlamaModel(EmbeddingModel):
    """The backbone alone, as an embedding model: last-token pooling."""

    layer = LlamaDecoderLayer
    adapter = LLAMA
    name_rules = {"hf": BACKBONE, "gguf": GGUF}


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and relatives: Llama with a sliding window where the config states one."""

    adapter = MISTRAL


class Phi3ForCausalLM(LlamaForCausalLM):
    """Phi-3 and Phi-4: q, k, v and gate, up fused on disk, longrope, partial rotary."""

    adapter = PHI3


class InternLM3ForCausalLM(LlamaForCausalLM):
    """InternLM3: biases of q, k, v apart from all others."""

    adapter = INTERNLM3


class IQuestCoderForCausalLM(LlamaForCausalLM):
    """IQuest-Coder V1: Llama in shape; options that no checkpoint enables are refused."""

    adapter = IQUESTCODER
