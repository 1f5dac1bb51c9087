"""Tiny checkpoints of several shapes, to be run on many ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Phi3Config, Phi3ForCausalLM

import archzoo
from tiny import SIZES, ids_of, randomise, save, tiny_llama

LAYERS = 7
"""Uneven over 2, 3 and 5 stages."""
VOCAB = 131
"""Divisible by no number of ranks; most of the last ranks' rows are padding."""

COMMON: dict[str, Any] = {"num_hidden_layers": LAYERS, "vocab_size": VOCAB, "hidden_size": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    # 8 ranks hold one KV head twice.
    "replicated": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 4},
    # 4 ranks hold two KV heads once; every linear has a bias.
    "several": {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 4}
    | {"attention_bias": True, "mlp_bias": True},
    # Tied, three ranks.
    "tied": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 36}
    | {"tie_word_embeddings": True},
    # q, k, v and gate, up fused on disk; 4 ranks share 2 KV heads.
    "fused": {"num_attention_heads": 8, "num_key_value_heads": 2},
    # Tied, and every rank holds the one KV head.
    "single": {"num_attention_heads": 12, "num_key_value_heads": 1, "head_dim": 4}
    | {"hidden_size": 36, "tie_word_embeddings": True},
}
HEADS = {
    name: (sizes["num_attention_heads"], sizes["num_key_value_heads"])
    for name, sizes in VARIANTS.items()
}
"""Query and KV heads of each variant."""


def checkpoint(variant: str, path: Path) -> tuple[Path, Any]:
    changes = {**COMMON, **VARIANTS[variant]}
    if variant != "fused":
        return tiny_llama(path, **changes)
    reference = Phi3ForCausalLM(Phi3Config(**{**SIZES, **changes}, attn_implementation="eager"))
    randomise(reference.eval())
    return save(reference, path), reference


PROMPTS = [ids_of(11, VOCAB), ids_of(1, VOCAB), ids_of(4, VOCAB, seed=2)]


def load(path: Path, **options: Any) -> archzoo.Model:
    return archzoo.load(path, **{"dtype": torch.float64, "kv_slots": 256, **options})


def close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-9) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


class Checkpoints:
    """Each variant on disk, with the model that wrote it; written when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, tuple[Path, Any]]()

    def __call__(self, variant: str) -> tuple[Path, Any]:
        if variant not in self._made:
            self._made[variant] = checkpoint(variant, self._folder / variant)
        return self._made[variant]
