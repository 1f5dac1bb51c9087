"""GGUF files of Qwen2 and Qwen3, under the names that llama.cpp's own tables give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import archzoo
from archzoo.errors import ConfigError, CoverageError
from tiny import SIZES, ids_of, randomise, reference_logits, save_gguf

BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
FILES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, **BASE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, **BASE, head_dim=6)),
    "qwen3 tied": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True)),
    "qwen3moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**SIZES, **BASE, **EXPERTS, head_dim=6)),
}


def written(
    path: Path, kind: str, left_out: str = "none", **metadata: Callable[[gguf.GGUFWriter], None]
) -> tuple[Path, Any]:
    """A file of one kind and the model whose weights it holds."""
    make, config = FILES[kind]
    model = make(config).eval()
    randomise(model)
    left = "lm_head" if kind == "qwen3 tied" else left_out
    save_gguf(model, path, kind.split()[0], left_out=left, more=tuple(metadata.values()))
    return path, model


@pytest.mark.parametrize("tp", [1, 6])
@pytest.mark.parametrize("kind", FILES)
def test_logits_equal_transformers(kind: str, tp: int, tmp_path: Path) -> None:
    path, reference = written(tmp_path / "a.gguf", kind)
    loaded = archzoo.load(path, dtype=torch.float32, tp=tp)
    assert type(loaded.module).__name__ == type(reference).__name__
    for ids in (ids_of(9), ids_of(1)):
        want = reference_logits(reference, ids)
        torch.testing.assert_close(loaded.logits(ids), want, rtol=0, atol=2e-4)


def test_norms_are_stored_under_names_of_llama_cpp(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "a.gguf", "qwen3")
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert {"blk.0.attn_q_norm.weight", "blk.2.attn_k_norm.weight"} <= names
    path, _ = written(tmp_path / "b.gguf", "qwen3", left_out="layers.1.self_attn.k_norm")
    with pytest.raises(CoverageError, match=r"model\.layers\.1\.self_attn\.k_norm\.weight"):
        archzoo.load(path, dtype=torch.float32)


def test_experts_by_topology_and_by_what_the_file_says(tmp_path: Path) -> None:
    """Weights of a row add up to 1 where the file says nothing, as in llama.cpp."""
    path, reference = written(tmp_path / "a.gguf", "qwen3moe")
    want = reference_logits(reference, ids_of(9))
    loaded = archzoo.load(path, dtype=torch.float32, tp=6, ep=3)
    torch.testing.assert_close(loaded.logits(ids_of(9)), want, rtol=0, atol=2e-4)
    as_served = {
        "gate": ("gating_func", 1),
        "scale": ("weights_scale", 1.0),
        "none": ("group_count", 0),
    }
    for key, value in as_served.values():
        add = "add_float32" if isinstance(value, float) else "add_uint32"
        path, _ = written(
            tmp_path / f"{key}.gguf", "qwen3moe",
            extra=lambda w, add=add, key=key, value=value: getattr(w, add)(f"qwen3moe.expert_{key}", value),
        )  # fmt: skip
        assert archzoo.load(path, dtype=torch.float32).config.moe.norm_topk_prob is True
    for key, value in (("gating_func", 2), ("shared_count", 1)):
        path, _ = written(
            tmp_path / f"{key}.gguf", "qwen3moe",
            extra=lambda w, key=key, value=value: w.add_uint32(f"qwen3moe.expert_{key}", value),
        )  # fmt: skip
        with pytest.raises(ConfigError, match=rf"qwen3moe\.expert_{key}: {value} is not read"):
            archzoo.load(path, dtype=torch.float32)
    path, _ = written(
        tmp_path / "raw.gguf", "qwen3moe", norm=lambda w: w.add_expert_weights_norm(False)
    )
    assert archzoo.load(path, dtype=torch.float32).config.moe.norm_topk_prob is False


def test_pooling_of_the_last_token_is_the_one_that_is_served(tmp_path: Path) -> None:
    """Qwen3-Embedding's files state it; another one would make other vectors."""
    kinds = gguf.PoolingType
    path, reference = written(
        tmp_path / "a.gguf", "qwen3", pooling=lambda writer: writer.add_pooling_type(kinds.LAST)
    )
    vector = archzoo.load(path, dtype=torch.float32).embed([3, 4, 5])[0]
    with torch.no_grad():
        want = reference.model(torch.tensor([[3, 4, 5]]))[0][0, -1]
    torch.testing.assert_close(vector, want / want.norm(), rtol=0, atol=1e-5)
    for kind in (kinds.MEAN, kinds.CLS):
        path, _ = written(
            tmp_path / f"{kind.name}.gguf", "qwen3",
            pooling=lambda writer, kind=kind: writer.add_pooling_type(kind),
        )  # fmt: skip
        with pytest.raises(ConfigError, match=rf"qwen3\.pooling_type: {kind.value} is not read"):
            archzoo.load(path, dtype=torch.float32)
