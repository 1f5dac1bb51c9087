"""How Qwen's config.json is read: defaults of ``transformers``, but for the rotary base."""

from __future__ import annotations

from archzoo.config import LLAMA_LIKE, window_if_switched_on

_TEXT = dict.fromkeys(
    ("mrope_section", "mrope_interleaved", "use_mrope"),
    "a text token has one position on every axis",
)
"""What text models that come out of multimodal ones still state."""
_CHUNKS = {
    "dual_chunk_attention_config": "full attention, as transformers runs it; the chunks of 256k tokens "
    "and more that some engines cut are an approximation for contexts beyond them"
}
"""Qwen2.5-1M and long-context Qwen3 state it."""

QWEN2 = LLAMA_LIKE.extend(
    "qwen2",
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "attention_bias": True,
        "bos_token_id": None,
        "eos_token_ids": None,
    },
    names={"attention_bias": (), "o_proj_bias": (), "mlp_bias": ()},
    ignored=_TEXT
    | _CHUNKS
    | dict.fromkeys(
        ("attention_bias", "qkv_bias", "bias", "mlp_bias"), "qwen2 has biases of q, k and v only"
    ),
    rope_types={"mrope": "default"},
    window=window_if_switched_on,
)
"""``transformers.Qwen2Config``. A file without ``rope_theta`` gets the 1,000,000 that every model
released by Qwen states; ``transformers`` falls back to 10,000."""

QWEN3 = LLAMA_LIKE.extend(
    "qwen3",
    defaults={**QWEN2.defaults, "attention_bias": False, "head_dim": 128},
    names={"mlp_bias": ()},
    ignored=_TEXT
    | _CHUNKS
    | {"mlp_bias": "qwen3 has no biases in its MLP"}
    | dict.fromkeys(
        ("use_qk_norm", "qk_norm", "qk_layernorm"), "qwen3 normalises queries and keys always"
    ),
    rope_types={"mrope": "default"},
    window=window_if_switched_on,
)
"""``transformers.Qwen3Config``; the same base."""
