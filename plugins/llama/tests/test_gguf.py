"""GGUF files of Llama and Mistral, under the names and in the row orders of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import archzoo
from archzoo.errors import ArchzooError, ConfigError
from tiny import SIZES, ids_of, randomise, reference_logits, save_gguf

MODELS: dict[str, tuple[str, Any]] = {
    "llama": ("llama", LlamaForCausalLM(LlamaConfig(**SIZES))),
    "mistral as llama": (
        "llama",
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=12)),
    ),
    "mistral3": (
        "mistral3",
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=12)),
    ),
}


def by_layer(writer: Any) -> None:
    """Sizes of every layer, as newer converters write them for some models."""
    for key in ("attention.head_count_kv", "feed_forward_length"):
        name = f"{writer.arch}.{key}"
        for shard in writer.kv_data:
            shard.pop(name)
        writer.add_array(
            name, [SIZES["num_key_value_heads" if "kv" in key else "intermediate_size"]] * 3
        )


@pytest.mark.parametrize(("kind", "tp"), [("llama", 1), ("mistral as llama", 3), ("mistral3", 1)])
def test_logits_equal_transformers(kind: str, tp: int, tmp_path: Path) -> None:
    arch, reference = MODELS[kind]
    randomise(reference.eval())
    path = save_gguf(reference, tmp_path / "a.gguf", arch, more=(by_layer,))
    loaded = archzoo.load(path, dtype=torch.float32, tp=tp)
    want = reference_logits(reference, ids_of(9))
    torch.testing.assert_close(loaded.logits(ids_of(9)), want, rtol=0, atol=2e-4)
    name = "MistralForCausalLM" if kind == "mistral3" else "LlamaForCausalLM"
    assert type(loaded.module).__name__ == name and loaded.config.window(0) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.temperature_scale", 0.5), ("rope.scaling.yarn_log_multiplier", 1.0)],
)
def test_ministral_is_refused_by_what_makes_it_differ(
    key: str, value: float, tmp_path: Path
) -> None:
    path = save_gguf(
        MODELS["mistral3"][1], tmp_path / "a.gguf", "mistral3",
        more=(lambda writer: writer.add_float32(f"mistral3.{key}", value),),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=rf"mistral3\.{key}: {value} is not read"):
        archzoo.load(path, dtype=torch.float32)


def test_an_architecture_that_is_not_read_says_which_are(tmp_path: Path) -> None:
    path = save_gguf(MODELS["llama"][1], tmp_path / "a.gguf", "gemma")
    with pytest.raises(
        ArchzooError, match=r"'gemma' is not read from GGUF \(read are llama, .*qwen3moe"
    ):
        archzoo.load(path)
