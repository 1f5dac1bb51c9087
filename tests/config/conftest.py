from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def llama() -> Callable[..., dict[str, Any]]:
    """Makes a tiny Llama config.json; ``absent=(names,)`` leaves fields out."""

    def make(absent: tuple[str, ...] = (), **over: Any) -> dict[str, Any]:
        raw: dict[str, Any] = dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            hidden_act="silu",
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=128,
            max_position_embeddings=256,
            rms_norm_eps=1e-5,
            rope_theta=50000.0,
            tie_word_embeddings=False,
            torch_dtype="float32",
            bos_token_id=1,
            eos_token_id=2,
            use_cache=True,
            initializer_range=0.02,
        )
        raw.update(over)
        return {key: value for key, value in raw.items() if key not in absent}

    return make
