"""Small checkpoints with weights, dense and with experts, written without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from survey.stated import CONFIG, shapes
from torch import Tensor

Tensors = dict[str, Tensor]
EXPERTS = {
    **{key: CONFIG[key] for key in CONFIG if key != "model_type"},
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 3,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {"dense": CONFIG, "experts": EXPERTS}


def tensors(kind: str) -> Tensors:
    config = CONFIGS[kind]
    found = shapes(config)
    if kind == "experts":
        found = {name: shape for name, shape in found.items() if ".mlp." not in name}
        wide, narrow = config["hidden_size"], config["moe_intermediate_size"]
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            found[f"{at}.mlp.gate.weight"] = (config["num_experts"], wide)
            for norm in ("q_norm", "k_norm"):
                found[f"{at}.self_attn.{norm}.weight"] = (config["head_dim"],)
            for expert in range(config["num_experts"]):
                for part in ("gate_proj", "up_proj"):
                    found[f"{at}.mlp.experts.{expert}.{part}.weight"] = (narrow, wide)
                found[f"{at}.mlp.experts.{expert}.down_proj.weight"] = (wide, narrow)
    return {name: torch.rand(shape).bfloat16() + 0.1 for name, shape in found.items()}


def write(folder: Path, kind: str, found: Mapping[str, Tensor], **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIGS[kind], **changes}))
    save_file(dict(found), folder / "model.safetensors")
    return folder
