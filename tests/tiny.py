"""Tiny seeded checkpoints written by transformers, and the model that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from archzoo.weights.gguf_file import GGUFFile

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


def save_gguf(
    model: PreTrainedModel,
    path: Path,
    arch: str,
    *,
    left_out: str = "none",
    more: Sequence[Callable[[gguf.GGUFWriter], None]] = (),
) -> Path:
    """A model as a GGUF file, named by llama.cpp's own tables and stored in its row orders.

    Args:
        model: of ``transformers``.
        path: the file.
        arch: ``general.architecture``.
        left_out: tensors with this in their name are not written.
        more: add or replace metadata.
    """
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    if head_dim := getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if experts := getattr(config, "num_experts", 0):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for add in more:
        add(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    rows = {"q_proj": heads, "k_proj": kv_heads} if arch in ("llama", "mistral3") else {}
    for name, value in _llama_cpp_tensors(model):
        stem, suffix = name.rsplit(".", 1)
        if left_out in name:
            continue
        if count := rows.get(stem.rpartition(".")[2]):
            halves = value.unflatten(0, (count, 2, -1))
            value = halves.transpose(1, 2).reshape(value.shape).contiguous()
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _llama_cpp_tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Gate and up of all experts apart, as llama.cpp stacks them."""
    for name, value in model.state_dict().items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for part, half in zip(("gate", "up"), value.chunk(2, dim=1), strict=True):
                yield f"{stem}.{part}_proj.weight", half.contiguous()
        else:
            yield f"{name}.weight" if last == "down_proj" else name, value


def gguf_of(metadata: Mapping[str, object], path: Path = Path("model.gguf")) -> GGUFFile:
    """What is parsed of a file without tensors."""
    file = GGUFFile.__new__(GGUFFile)
    file.path, file.parts, file.metadata, file.tensors = path, (), metadata, {}
    return file
