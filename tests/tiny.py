"""Tiny seeded checkpoints written by transformers, and the model that wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights large enough that every angle, bias and norm moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.25 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)


def save(model: PreTrainedModel, path: Path, **options: Any) -> Path:
    model.save_pretrained(path, **options)
    return path


def tiny_llama(path: Path, seed: int = 0, **changes: Any) -> tuple[Path, LlamaForCausalLM]:
    """A Llama checkpoint on disk and the reference model in eval mode."""
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()
    randomise(model, seed)
    return save(model, path), model


def ids_of(count: int, vocab: int = 130, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed * 1000 + count)
    return torch.randint(3, vocab, (count,), generator=generator).tolist()


def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()
