"""Qwen3-MoE: Qwen3 whose MLPs are experts, in all layers or in those that the config leaves.

Reference implementation: ``transformers`` ``Qwen3MoeForCausalLM``, ``Qwen3MoeModel``.
"""

from __future__ import annotations

from archzoo.config import window_everywhere_if_switched_on

from .adapters import QWEN3
from .model import Qwen3ForCausalLM, Qwen3Model

QWEN3_MOE = QWEN3.extend(
    "qwen3_moe",
    defaults={
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "head_dim": None,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (),
    },
    window=window_everywhere_if_switched_on,
    experts=True,
)
"""``transformers.Qwen3MoeConfig``."""


class Qwen3MoeModel(Qwen3Model):
    """The backbone alone."""

    adapter = QWEN3_MOE


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Qwen3-30B-A3B, Qwen3-235B-A22B and relatives."""

    adapter = QWEN3_MOE
    backbone = Qwen3MoeModel
