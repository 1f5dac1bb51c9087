"""GGUF names and layouts, as data: what llama.cpp's converter renames, reorders and adds.

Patterns are over dotted components, ``*`` is one component. The remap registry makes rules of
them; stacking (``q_proj`` into ``qkv_proj``) is a later phase, shared with Hugging Face names.

Source:
    llama.cpp, gguf-py tensor_mapping.py and convert_hf_to_gguf.py (names; LlamaModel.permute).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..config.gguf import ROPE_DIVISORS
from .remap import Rename, Skip
from .remap_registry import NameRules

GGUF_LLAMA_RENAMES: tuple[tuple[str, str], ...] = (
    ("token_embd.*", "model.embed_tokens.*"),
    ("output_norm.*", "model.norm.*"),
    ("output.*", "lm_head.*"),
    ("blk.*.attn_norm.*", "model.layers.*.input_layernorm.*"),
    ("blk.*.attn_q.*", "model.layers.*.self_attn.q_proj.*"),
    ("blk.*.attn_k.*", "model.layers.*.self_attn.k_proj.*"),
    ("blk.*.attn_v.*", "model.layers.*.self_attn.v_proj.*"),
    ("blk.*.attn_q_norm.*", "model.layers.*.self_attn.q_norm.*"),
    ("blk.*.attn_k_norm.*", "model.layers.*.self_attn.k_norm.*"),
    ("blk.*.attn_output.*", "model.layers.*.self_attn.o_proj.*"),
    ("blk.*.ffn_norm.*", "model.layers.*.post_attention_layernorm.*"),
    ("blk.*.ffn_gate.*", "model.layers.*.mlp.gate_proj.*"),
    ("blk.*.ffn_up.*", "model.layers.*.mlp.up_proj.*"),
    ("blk.*.ffn_down.*", "model.layers.*.mlp.down_proj.*"),
    ("blk.*.ffn_gate_inp.*", "model.layers.*.mlp.gate.*"),
    ("blk.*.ffn_gate_exps.*.weight", "model.layers.*.mlp.experts.*.gate_proj.weight"),
    ("blk.*.ffn_up_exps.*.weight", "model.layers.*.mlp.experts.*.up_proj.weight"),
    ("blk.*.ffn_down_exps.*.weight", "model.layers.*.mlp.experts.*.down_proj.weight"),
)
"""(GGUF pattern, parameter pattern) of Llama-like decoders; GGUFSource numbers the experts."""

GGUF_LLAMA_SKIPS: tuple[tuple[str, str, str], ...] = (
    ("gguf-rope-divisors", ROPE_DIVISORS, "all are 1, or the config states them as rope scaling"),
)
"""(rule name, GGUF pattern, why it may be left out); GGUFSource sees to it that this is so."""

GGUF_NAMES = NameRules(
    renames=tuple(Rename(pattern, name) for pattern, name in GGUF_LLAMA_RENAMES),
    skips=tuple(Skip(rule, pattern, why) for rule, pattern, why in GGUF_LLAMA_SKIPS),
)
"""The rules for ``name_rules["gguf"]``; q, k, v and gate, up are stacked by ``hf`` rules afterwards."""

GGUF_INTERLEAVED_QK: Mapping[str, bool] = {
    **{"llama": True, "mistral3": True},
    **{"qwen2": False, "qwen3": False, "qwen3moe": False},
}
"""By ``general.architecture``: are the rows of attn_q and attn_k reordered for ggml's
interleaved rope? Hugging Face row (half t, pair j) of a head is then stored at 2 j + t."""
