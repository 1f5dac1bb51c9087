"""How the family's config.json is read: defaults equal to those of ``transformers``."""

from __future__ import annotations

from archzoo.config import LLAMA_LIKE, window_everywhere

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
