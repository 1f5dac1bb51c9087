"""Checkpoints that are stated and not there: a config and headers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 131,
}
Shapes = dict[str, tuple[int, ...]]
BYTES = {"BF16": 2, "F32": 4, "I8": 1, "F16": 2}


def shapes(config: Mapping[str, Any] = CONFIG) -> Shapes:
    """What a Llama of this configuration stores."""
    hidden, ffn, head = (config[n] for n in ("hidden_size", "intermediate_size", "head_dim"))
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    found = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for at in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{at}.{name}.weight": shape for name, shape in layer.items()}
    found["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    return found


def header(tensors: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str] | None = None) -> Any:
    """A safetensors header with the tensors one after the other, bfloat16 unless said."""
    found: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        kind = (kinds or {}).get(name, "BF16")
        size = BYTES[kind]
        for extent in shape:
            size *= extent
        found[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    return found


def state(
    folder: Path,
    tensors: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any] = CONFIG,
    kinds: Mapping[str, str] | None = None,
) -> Path:
    """Write config and headers; the folder."""
    stated = header(tensors, kinds)
    size = 100 + max((entry["data_offsets"][1] for entry in stated.values()), default=0)
    files = {"model.safetensors": {"size": size, "header": stated}}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "model.safetensors.headers.json").write_text(json.dumps(files))
    return folder
