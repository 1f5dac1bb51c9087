"""GGUF files of Qwen2 and Qwen3, under the names that llama.cpp's own tables give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import archzoo
from archzoo.errors import ConfigError, CoverageError
from tiny import SIZES, ids_of, randomise, reference_logits

BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
FILES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, **BASE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, **BASE, head_dim=6)),
    "qwen3 tied": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True)),
}


def written(
    path: Path, kind: str, left_out: str = "none", **metadata: Callable[[gguf.GGUFWriter], None]
) -> tuple[Path, Any]:
    """A file of one kind and the model whose weights it holds."""
    make, config = FILES[kind]
    model = make(config).eval()
    randomise(model)
    arch = kind.split()[0]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if arch == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for add in metadata.values():
        add(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, value in model.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        if left_out not in name and not (kind == "qwen3 tied" and stem == "lm_head"):
            writer.add_tensor(f"{names.get_name(stem)}.{suffix}", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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
