"""How each family's config.json is read: defaults equal to those of ``transformers``."""

from __future__ import annotations

from archzoo.config import LLAMA_LIKE, window_everywhere
from archzoo.config.values import Where, flag, refuse, show

LLAMA = LLAMA_LIKE
"""``transformers.LlamaConfig``."""

MISTRAL = LLAMA_LIKE.extend(
    "mistral",
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    window=window_everywhere,
)
"""``transformers.MistralConfig``."""

PHI3 = LLAMA_LIKE.extend(
    "phi3",
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_ids": 32000,
        "pad_token_id": 32000,
    },
    names={"attention_bias": (), "o_proj_bias": (), "mlp_bias": ()},
    ignored=dict.fromkeys(("attention_bias", "mlp_bias"), "phi3 has no biases"),
    window=window_everywhere,
    rope_types={"yarn": "longrope"},
    partial_rotary=True,
)
"""``transformers.Phi3Config``; its first checkpoints write ``su`` or ``yarn`` for longrope."""

INTERNLM3 = LLAMA_LIKE.extend(
    "internlm3",
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 2,
    },
    names={
        "attention_bias": ("qkv_bias", "attention_bias"),
        "o_proj_bias": ("bias", "mlp_bias"),
        "mlp_bias": ("bias", "mlp_bias"),
    },
)
"""``transformers.InternLM3Config``. The vendor's names come first: ``qkv_bias`` is about q, k and
v, ``bias`` about every other projection; ``transformers`` saves both under Llama's names."""


def _not_served(value: object, where: Where) -> None:
    refuse(where, f"{show(value)} is not served by the iquestcoder family; only null is")


def _switched_off(value: object, where: Where) -> bool:
    if flag(value, where):
        refuse(where, "true is not served by the iquestcoder family, whose reference has no window")
    return False


IQUESTCODER = LLAMA_LIKE.extend(
    "iquestcoder",
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    },
    extra={"clip_qkv": _not_served, "use_sliding_window": _switched_off},
)
"""``transformers.IQuestCoderConfig``, which refuses the same two options."""
