"""How each family's config.json is read: defaults equal to those of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping

from archzoo.config import LLAMA_LIKE, window_everywhere
from archzoo.config.values import Where, flag, integer, refuse, show

LLAMA = LLAMA_LIKE
"""``transformers.LlamaConfig``."""

MISTRAL = LLAMA_LIKE.extend(
    "mistral",
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    window=window_everywhere,
)
"""``transformers.MistralConfig``."""

PHI3 = LLAMA_LIKE.extend(
    "phi3",
    defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_ids": 32000,
        "pad_token_id": 32000,
    },
    names={"attention_bias": (), "o_proj_bias": (), "mlp_bias": ()},
    ignored=dict.fromkeys(("attention_bias", "mlp_bias"), "phi3 has no biases"),
    window=window_everywhere,
    rope_types={"yarn": "longrope"},
    recomputes_keys=True,
    partial_rotary=True,
)
"""``transformers.Phi3Config``; its first checkpoints write ``su`` or ``yarn`` for longrope."""

INTERNLM3 = LLAMA_LIKE.extend(
    "internlm3",
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 2,
    },
    names={
        "attention_bias": ("qkv_bias", "attention_bias"),
        "o_proj_bias": ("bias", "mlp_bias"),
        "mlp_bias": ("bias", "mlp_bias"),
    },
)
"""``transformers.InternLM3Config``. The vendor's names come first: ``qkv_bias`` is about q, k and
v, ``bias`` about every other projection; ``transformers`` saves both under Llama's names."""


def _not_served(value: object, where: Where) -> None:
    refuse(where, f"{show(value)} is not served by the iquestcoder family; only null is")


def _switched_off(value: object, where: Where) -> bool:
    if flag(value, where):
        refuse(where, "true is not served by the iquestcoder family, whose reference has no window")
    return False


IQUESTCODER = LLAMA_LIKE.extend(
    "iquestcoder",
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    },
    extra={"clip_qkv": _not_served, "use_sliding_window": _switched_off},
)
"""``transformers.IQuestCoderConfig``, which refuses the same two options."""


def _captured_layers(value: object, where: Where) -> tuple[int, ...] | None:
    """The block's own layer ids; None where it leaves them to the target."""
    if not isinstance(value, Mapping):
        refuse(where, f"{show(value)} is not an object")
    within = Where(f"{where.field}.use_aux_hidden_state", where.file)
    if not flag(value.get("use_aux_hidden_state", True), within):
        refuse(
            within, "false: a head that reads the last hidden state alone is not an EAGLE-3 head"
        )
    ids = value.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return None
    within = Where(f"{where.field}.eagle_aux_hidden_state_layer_ids", where.file)
    if not isinstance(ids, list) or len(ids) != EAGLE3_STATES:
        refuse(within, f"{show(ids)} is not a list of {EAGLE3_STATES} layer ids")
    return tuple(integer(each, within, low=0) for each in ids)


EAGLE3_STATES = 3
"""Hidden states of the target that an EAGLE-3 head fuses."""

EAGLE3 = LLAMA.extend(
    "eagle3",
    extra={
        "draft_vocab_size": integer,
        "target_hidden_size": integer,
        "eagle_config": _captured_layers,
        "norm_output": flag,
    },
    strict=True,
)
"""EAGLE-3 heads: a Llama layer's fields, and how the head fits its target.

``norm_output`` (EAGLE-3.1): the state for the next guess is the normed one. Further options of its
training codes (``fc_norm``, ``norm_before_fc``, ``norm_before_residual``, ``parallel_drafting``) are
refused as unknown fields.
"""
