"""Llama and its close relatives: the layer, language models, and the backbone alone.

Reference implementations: ``transformers`` ``LlamaForCausalLM``, ``MistralForCausalLM``,
``Phi3ForCausalLM``; InternLM3 and IQuest-Coder are Llama there too, under their own configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from archzoo.config import ConfigAdapter
from archzoo.models import CausalLM, DecoderLayer, EmbeddingModel, GroupedQueryAttention
from archzoo.weights import GGUF_NAMES, NameRules

from .adapters import INTERNLM3, IQUESTCODER, LLAMA, MISTRAL, PHI3


class LlamaAttention(GroupedQueryAttention):
    """Grouped-query attention with rotary positions and nothing else."""


class LlamaDecoderLayer(DecoderLayer):
    """Pre-norm layer: attention, then a gated MLP."""

    attention = LlamaAttention


class LlamaModel(EmbeddingModel):
    """The backbone alone, as an embedding model: last-token pooling."""

    layer = LlamaDecoderLayer
    adapter: ClassVar[ConfigAdapter] = LLAMA
    name_rules: ClassVar[Mapping[str, NameRules]] = {"gguf": GGUF_NAMES}


class MistralModel(LlamaModel):
    """The Mistral backbone alone, as E5-Mistral and relatives are saved."""

    adapter = MISTRAL


class Phi3Model(LlamaModel):
    """The Phi-3 backbone alone."""

    adapter = PHI3


class LlamaForCausalLM(CausalLM):
    """Llama 1 to 3 and checkpoints of the same shape (SmolLM2, TinyLlama, …)."""

    layer = LlamaDecoderLayer
    adapter: ClassVar[ConfigAdapter] = LLAMA
    name_rules: ClassVar[Mapping[str, NameRules]] = {"gguf": GGUF_NAMES}
    backbone: ClassVar[type[EmbeddingModel] | None] = LlamaModel


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and relatives: Llama with a sliding window where the config states one."""

    adapter = MISTRAL
    backbone = MistralModel


class Phi3ForCausalLM(LlamaForCausalLM):
    """Phi-3 and Phi-4: q, k, v and gate, up fused on disk, longrope, partial rotary."""

    adapter = PHI3
    backbone = Phi3Model


class InternLM3ForCausalLM(LlamaForCausalLM):
    """InternLM3: biases of q, k, v apart from all others."""

    adapter = INTERNLM3
    backbone = None


class IQuestCoderForCausalLM(LlamaForCausalLM):
    """IQuest-Coder V1: Llama in shape; options that no checkpoint enables are refused."""

    adapter = IQUESTCODER
    backbone = None
