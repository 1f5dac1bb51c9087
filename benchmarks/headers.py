"""Headers of a checkpoint that is not there: files that end where their data would start, and an index.

python benchmarks/headers.py FOLDER      Llama 3.1 405B: 191 files, 1137 tensors, 160 KiB
python benchmarks/headers.py FOLDER moe  671B with 256 experts a layer: 163 files, 45102 tensors
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

LLAMA_405B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "max_position_embeddings": 131072,
    "num_attention_heads": 128,
    "num_hidden_layers": 126,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
FILES_405B = 191
MOE_671B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "max_position_embeddings": 131072,
    "mlp_only_layers": [0, 1, 2],
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
}
"""Layers and experts of DeepSeek-V3 (671B), with Qwen3's attention."""
FILES_671B = 163
BYTES = 2
"""Of a bfloat16."""

Shapes = dict[str, tuple[int, ...]]


def tensors_of(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of everything that a Llama or Qwen3 without biases stores."""
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for at in range(config["num_hidden_layers"]):
        for name, shape in (_attention(config) | _mlp(config, at)).items():
            yield f"model.layers.{at}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def _attention(config: Mapping[str, Any]) -> Shapes:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim", hidden // heads)
    shapes: Shapes = {
        "self_attn.q_proj": (heads * size, hidden),
        "self_attn.k_proj": (config["num_key_value_heads"] * size, hidden),
        "self_attn.v_proj": (config["num_key_value_heads"] * size, hidden),
        "self_attn.o_proj": (hidden, heads * size),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if "Qwen3" in config["architectures"][0]:
        shapes |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    return shapes


def _mlp(config: Mapping[str, Any], at: int) -> Shapes:
    hidden, experts = config["hidden_size"], config.get("num_experts", 0)
    if not experts or at in config["mlp_only_layers"]:
        return _gated("mlp", hidden, config["intermediate_size"])
    shapes: Shapes = {"mlp.gate": (experts, hidden)}
    for number in range(experts):
        shapes |= _gated(f"mlp.experts.{number}", hidden, config["moe_intermediate_size"])
    return shapes


def _gated(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        f"{prefix}.gate_proj": (width, hidden),
        f"{prefix}.up_proj": (width, hidden),
        f"{prefix}.down_proj": (hidden, width),
    }


def write_headers(folder: Path, config: Mapping[str, Any], files: int) -> None:
    """Write config, index and headers, tensors spread over the files by their bytes."""
    tensors = dict(tensors_of(config))
    total = sum(map(prod, tensors.values()))
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(files)]
    done = 0
    for name, shape in tensors.items():
        shards[done * files // total][name] = shape
        done += prod(shape)
    weight_map: dict[str, str] = {}
    for at, shard in enumerate(shards, start=1):
        file = f"model-{at:05d}-of-{files:05d}.safetensors"
        text = json.dumps(_header(shard)).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    index = {"metadata": {"total_size": total * BYTES}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _header(shard: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shard.items():
        start, end = end, end + prod(shape) * BYTES
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    return header


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    if sys.argv[2:] == ["moe"]:
        write_headers(Path(sys.argv[1]), MOE_671B, FILES_671B)
    else:
        write_headers(Path(sys.argv[1]), LLAMA_405B, FILES_405B)
