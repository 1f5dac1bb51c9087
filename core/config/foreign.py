"""Fields that change results in some families, each with the values that change nothing.

A family whose reference has such a field says so in its adapter (``names``, ``extra`` or
``ignored``). Everywhere else a value that would change results is refused: the checkpoint was made
for another family, or somebody expects what this one does not do, and no tensor would show it.

Source: config classes and forward passes of the decoder families of ``transformers`` 5.24; names
that only vendors' own code reads (``mup_*`` of Phi-3-small, ``use_logn_attn`` of Qwen, …).
"""

from __future__ import annotations

from collections.abc import Mapping

_NEVER = (
    "attention_multiplier attention_chunk_size clip_qkv dim_model_base query_pre_attn_scalar "
    "scale_depth softmax_scale swiglu_limit swiglu_alpha qk_l2_clip_threshold gradient_clipping "
    "dual_chunk_attention_config keep_window_size sliding_window_size window_size attention_window window "
    "log_scaling_alpha log_scaling_n_floor alibi_bias_max position_bias_num_buckets "
    "mup_attn_multiplier mup_embedding_multiplier "
    "mup_width_multiplier logits_mup_width_multiplier output_multiplier_scale"
)
_OFF_AT_FALSE = (
    "alibi use_alibi attn_temperature_tuning add_full_attention_sink_bias add_swa_attention_sink_bias "
    "apply_residual_connection_post_layernorm attention_k_eq_v bidirectional "
    "layernorm_zero_centered mup_enabled mup_use_scaling use_mup "
    "normalize_embedding normalize_embeddings norm_after parallel_attn parallel_residual prefix_lm "
    "rescale_embeddings rope_interleave rope_interleaved scale_attn_by_inverse_layer_idx "
    "scale_embedding use_logn_attn use_mem_rope use_norm_after use_parallel_residual use_post_norm "
    "use_qk_norm qk_norm qk_layernorm use_sandwich_norm zero_centered_norm "
    "_remove_final_layer_norm"
)
_OFF_AT_ONE = (
    "attention_in_multiplier attention_out_multiplier attention_value_scale embedding_multiplier "
    "embedding_scale emb_scale key_multiplier lm_head_multiplier logit_scale logits_scaling "
    "loop_num_passes mlp_multipliers moe_routed_scaling_factor mup_embeddings_multiplier "
    "n_recurrent_loops residual_multiplier residual_scale route_scale routed_scaling_factor "
    "router_scaling_factor scale_emb total_ut_steps width_multiplier n_group topk_group"
)
_OFF_AT_ZERO = (
    "attention_logit_cap attn_logit_cap attn_logit_softcap attn_logit_softcapping "
    "attention_logit_softcapping final_logit_softcap final_logit_softcapping logit_softcap "
    "logits_soft_cap mlp_gate_softcap mlp_up_softcap moe_norm_min moe_router_logit_softcapping "
    "num_kv_shared_layers output_logit_soft_cap router_logit_softcapping"
)

FOREIGN_FIELDS: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(_NEVER.split(), ()),
    **dict.fromkeys(_OFF_AT_FALSE.split(), (False,)),
    **dict.fromkeys(_OFF_AT_ONE.split(), (1,)),
    **dict.fromkeys(_OFF_AT_ZERO.split(), (0,)),
    "activation_function": ("silu", "swish"),
    "hidden_activation": ("silu", "swish"),
    "ffn_act_fn": ("silu", "swish"),
    "mlp_hidden_act": ("silu", "swish"),
    "norm_type": ("rmsnorm", "rms_norm", "RMSNorm"),
    "normalization_type": ("rmsnorm", "rms_norm", "RMSNorm"),
    "position_embedding_type": ("rope", "rotary", "absolute"),
    "scale_attn_weights": (True,),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy",),
}
"""Field -> values that say what is done anyway (null always does). ``position_embedding_type`` is
``absolute`` in files that an early ``transformers`` saved, whatever the model."""


def says_nothing(name: str, value: object) -> bool:
    """Whether a foreign field's value asks for nothing that is not done anyway.

    >>> says_nothing("residual_multiplier", 1.0), says_nothing("residual_multiplier", 0.22)
    (True, False)
    >>> says_nothing("mlp_multipliers", [1.0, 1.0])
    True
    """
    values = value if isinstance(value, list) else [value]
    return all(each in FOREIGN_FIELDS[name] for each in values)
