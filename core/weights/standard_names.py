"""The name rules every Llama-like decoder shares, as data: stacking, spellings, skips, wrappers."""

from __future__ import annotations

from .nesting import Nesting
from .remap import Rename, Skip

STANDARD_QKV_MAPPING = (
    Rename("**.q_proj.*", "**.qkv_proj.*", "q"),
    Rename("**.k_proj.*", "**.qkv_proj.*", "k"),
    Rename("**.v_proj.*", "**.qkv_proj.*", "v"),
)
"""Split q, k, v projections to ``qkv_proj``; a stored ``qkv_proj`` passes as it is."""

STANDARD_GATE_UP_MAPPING = (
    Rename("**.gate_proj.*", "**.gate_up_proj.*", 0),
    Rename("**.up_proj.*", "**.gate_up_proj.*", 1),
)
"""Split gate and up projections to ``gate_up_proj``; a stored ``gate_up_proj`` passes as it is."""

STANDARD_EXPERT_MAPPING = (
    Rename("**.experts.#.gate_proj.*", "**.experts.gate_up_proj.*", 0),
    Rename("**.experts.#.up_proj.*", "**.experts.gate_up_proj.*", 1),
    Rename("**.experts.#.down_proj.*", "**.experts.down_proj.*"),
)
"""Tensors of single experts to parameters that stack them; stacked ones pass as they are."""

EXPERT_SPELLINGS = tuple(
    Rename(f"**.experts.{name}", f"**.experts.{name}.weight")
    for name in ("gate_up_proj", "down_proj")
)
"""Stacked experts, as ``transformers`` 5 has them in memory: parameters without a ``weight``."""

STANDARD_NESTING = Nesting(
    root="model",
    inside=("embed_tokens", "layers", "norm"),
    beside=("lm_head", "score"),
    wrappers=("model", "language_model", "transformer", "base_model", "pretrained_model"),
    anywhere=(
        "module",
        "_orig_mod",
        "_forward_module",
        "_fsdp_wrapped_module",
        "_fpw_module",
        "_checkpoint_wrapped_module",
    ),
)
"""Wrappers: multimodal models, PEFT, TRL; and of training, DistributedDataParallel and DeepSpeed,
torch.compile, Lightning, FSDP (now and before torch 1.12), activation checkpointing."""

_ATTENTION = "model.layers.*.self_attn"

KV_SCALE_SPELLINGS = (
    Rename(f"{_ATTENTION}.k_scale", f"{_ATTENTION}.attn.k_scale"),
    Rename(f"{_ATTENTION}.v_scale", f"{_ATTENTION}.attn.v_scale"),
    Rename(f"{_ATTENTION}.kv_scale", f"{_ATTENTION}.attn.kv_scale"),
    Rename(f"{_ATTENTION}.k_proj.k_scale", f"{_ATTENTION}.attn.k_scale"),
    Rename(f"{_ATTENTION}.v_proj.v_scale", f"{_ATTENTION}.attn.v_scale"),
    Rename(f"{_ATTENTION}.qkv_proj.k_scale", f"{_ATTENTION}.attn.k_scale"),
    Rename(f"{_ATTENTION}.qkv_proj.v_scale", f"{_ATTENTION}.attn.v_scale"),
    Rename(f"{_ATTENTION}.k_proj.output_scale", f"{_ATTENTION}.attn.k_scale"),
    Rename(f"{_ATTENTION}.v_proj.output_scale", f"{_ATTENTION}.attn.v_scale"),
)
"""KV-cache scales, before ``k_proj`` is stacked: bare, old, ModelOpt's, fused, Quark's."""

WEIGHT_SCALE_SPELLINGS = (
    Rename("**.weight_scale_inv", "**.weight_scale"),
    Rename("**.activation_scale", "**.input_scale"),
)
"""One name for a number that is multiplied with to dequantise, whatever the writer called it."""

STANDARD_SPELLINGS = KV_SCALE_SPELLINGS + WEIGHT_SCALE_SPELLINGS + EXPERT_SPELLINGS
"""Other names of tensors that have one meaning."""

_COMPUTED = "computed from the config"
_TABLE = "a table that ColossalAI and old trainers save, computed from the config"
_UNUSED_SCALE = "the KV cache is not quantised, so its calibration changes nothing"
_VISION = "a text model does not see"

STANDARD_SKIPS = (
    Skip("rotary inv_freq", "**.rotary_emb.inv_freq", _COMPUTED),
    Skip("rotary original_inv_freq", "**.rotary_emb.original_inv_freq", _COMPUTED),
    Skip("rotary cos_cached", "**.rotary_emb.cos_cached", _TABLE),
    Skip("rotary sin_cached", "**.rotary_emb.sin_cached", _TABLE),
    Skip("attention mask buffer", "**.attn.bias", "a stored causal mask"),
    Skip("attention masked_bias", "**.attn.masked_bias", "a stored mask value"),
    Skip("position ids", "**.embeddings.position_ids", "a stored range of numbers"),
    *(
        Skip("KV-cache scale", f"{_ATTENTION}.attn.{name}", _UNUSED_SCALE, unless_wanted=True)
        for name in ("k_scale", "v_scale", "kv_scale")
    ),
    *(
        Skip(f"vision: {name}", f"{start}{name}.**", _VISION, unless_wanted=True)
        for name in ("visual", "vision_tower", "vision_model", "multi_modal_projector")
        for start in ("", "model.")
    ),
    Skip("value head", "v_head.**", "reinforcement learning reads it", unless_wanted=True),
    Skip("multi-token prediction", "mtp.**", "only a draft model reads it", unless_wanted=True),
)
"""What real checkpoints carry and no module here wants."""
