"""Random configurations of every family that is served, as their authors write them.

A configuration is the JSON object of a config.json: spellings old and new, keys left out, null or
stated at their defaults, every rope type, windows, biases and ties, all from one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Raw = dict[str, Any]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "iquestcoder": "IQuestCoderForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""model_type -> what ``architectures`` names."""

ORIGINAL = 24
"""Positions before a rope scaling; prompts reach beyond them."""


ODD_FIELDS: list[Raw] = [
    {"attn_logit_softcapping": 30.0},
    {"final_logit_softcapping": 20.0},
    {"rope_interleaved": True},
    {"residual_multiplier": 0.22},
    {"query_pre_attn_scalar": 224},
    {"attention_multiplier": 0.5},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.2}},
    {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}},
    {"is_causal": False},
    {"use_parallel_residual": True},
    {"quantization_config": {"quant_method": "fp8"}},
]
"""What no family here does though other families or engines do: archzoo refuses each, and
``refusals.py`` says why, whether transformers runs it or not."""


def random_config(family: str, seed: int) -> Raw:
    """One configuration; of twenty, one states an odd field.

    Args:
        family: a model_type of ARCHITECTURES.
        seed: the same gives the same.
    """
    raw, dice = _plain_config(family, seed), Random(f"odd {family} {seed}")
    if dice.random() < 0.05:
        raw |= dice.choice(ODD_FIELDS)
    return raw


def _plain_config(family: str, seed: int) -> Raw:
    dice = Random(f"{family} {seed}")
    kv_heads = dice.choice([1, 2, 3])
    heads = kv_heads * dice.choice([1, 2, 4])
    head_dim = dice.choice([8, 12, 16])
    # Without a stated head_dim these families divide, or have one of their own.
    stated = family in ("internlm3", "iquestcoder", "qwen3", "qwen3_moe") or dice.random() < 0.3
    raw: Raw = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": dice.choice([64, 97, 130]),
        "hidden_size": heads * (4 if stated and family != "phi3" else head_dim),
        "intermediate_size": dice.choice([24, 48]),
        "num_hidden_layers": dice.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 96,
        "rms_norm_eps": dice.choice([1e-6, 1e-5]),
        "bos_token_id": 1,
        "eos_token_id": dice.choice([2, [2, 3]]),
        "pad_token_id": dice.choice([None, 0]),
        "tie_word_embeddings": dice.random() < 0.4,
    }
    if stated and family != "phi3":
        raw["head_dim"] = head_dim
    elif family in ("llama", "mistral") and dice.random() < 0.2:
        raw["head_dim"] = None
    if kv_heads == heads and family not in ("internlm3", "iquestcoder", "mistral", "qwen3_moe"):
        _sometimes(dice, 0.5, lambda: raw.__setitem__("num_key_value_heads", None))
    _sometimes(dice, 0.3, lambda: raw.__setitem__("hidden_act", dice.choice(ACTIVATIONS)))
    _sometimes(dice, 0.3, lambda: raw.update(dice.choice(IDLE_FIELDS)))
    _rope(raw, dice, head_dim)
    FAMILIES[family](raw, dice)
    return raw


ACTIVATIONS = ["silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "quick_gelu"]

IDLE_FIELDS: list[Raw] = [
    {"torch_dtype": "float32"},
    {"dtype": "float32"},
    {"torch_dtype": "bfloat16", "use_cache": False},
    {"attention_dropout": 0.1, "initializer_range": 0.02},
    {"_name_or_path": "somewhere", "transformers_version": "4.38.0"},
    {"pretraining_tp": 1, "output_attentions": False},
    {"rope_scaling": None},
]
"""What config files hold beside the sizes, and what changes no float32 logits."""


def _sometimes(dice: Random, share: float, change: Callable[[], object]) -> None:
    if dice.random() < share:
        change()


def _rope(raw: Raw, dice: Random, head_dim: int) -> None:
    """A rope block in one of its spellings, or none."""
    theta = dice.choice([1e4, 5e5, 10000])
    factor = dice.choice([2.0, 4.0, 3])
    kind = dice.choice(["none", "default", "linear", "dynamic", "yarn", "llama3"])
    raw["rope_theta"] = theta
    block: Raw = {}
    if kind == "default":
        block = {}
    elif kind in ("linear", "dynamic"):
        block = {"factor": factor}
    elif kind == "yarn":
        block = {"factor": factor, "original_max_position_embeddings": ORIGINAL}
        extra = [
            {"beta_fast": 16, "beta_slow": 2},
            {"attention_factor": 1.25},
            {"truncate": False},
            {"mscale": 1.5, "mscale_all_dim": 0.5},
            {"truncate": None},
        ]
        _sometimes(dice, 0.5, lambda: block.update(dice.choice(extra)))
    elif kind == "llama3":
        block = {
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        }
    if kind == "none":
        # Without it Qwen has 1,000,000 here and in other engines, 10,000 in transformers.
        if not raw["model_type"].startswith("qwen") and dice.random() < 0.3:
            del raw["rope_theta"]
        return
    if kind == "dynamic":
        raw["max_position_embeddings"] = ORIGINAL
    spelling = dice.choice(["old", "older", "new", "new without theta", "both keys"])
    if spelling == "old":
        raw["rope_scaling"] = {"rope_type": kind, **block}
    elif spelling == "older":
        raw["rope_scaling"] = {"type": kind, **block}
    elif spelling == "both keys":
        raw["rope_scaling"] = {"type": kind, "rope_type": kind, **block}
    elif spelling == "new":
        raw["rope_parameters"] = {"rope_type": kind, "rope_theta": theta, **block}
        if dice.random() < 0.7:
            del raw["rope_theta"]
    else:
        raw["rope_parameters"] = {"rope_type": kind, **block}


def _llama(raw: Raw, dice: Random) -> None:
    _sometimes(dice, 0.3, lambda: raw.update(attention_bias=dice.random() < 0.7))
    _sometimes(dice, 0.3, lambda: raw.update(mlp_bias=dice.random() < 0.7))
    if dice.random() < 0.3:
        del raw["tie_word_embeddings"]


def _mistral(raw: Raw, dice: Random) -> None:
    window = dice.choice([None, 5, 20, 4096, "absent"])
    if window != "absent":
        raw["sliding_window"] = window


def _phi3(raw: Raw, dice: Random) -> None:
    raw["bos_token_id"], raw["pad_token_id"] = 1, 0
    raw["sliding_window"] = dice.choice([None, 5, 30])
    raw.pop("rope_scaling", None)
    raw.pop("rope_parameters", None)
    raw["rope_theta"], raw["max_position_embeddings"] = 1e4, 96
    raw["original_max_position_embeddings"] = ORIGINAL
    size = raw["hidden_size"] // raw["num_attention_heads"]
    if dice.random() < 0.4:
        raw["partial_rotary_factor"] = 0.5
        size //= 2
    if dice.random() < 0.6:
        block = {
            "short_factor": [dice.choice([1.0, 1.1, 1.3]) for _ in range(size // 2)],
            "long_factor": [dice.choice([1.0, 2.0, 4.0]) for _ in range(size // 2)],
        }
        spelling = dice.choice(["old", "older", "new"])
        if spelling == "new":
            raw["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 1e4, **block}
        else:
            raw["rope_scaling"] = {"type" if spelling == "older" else "rope_type": "longrope"}
            raw["rope_scaling"] |= block


def _internlm3(raw: Raw, dice: Random) -> None:
    if dice.random() < 0.5:
        raw["bias"] = raw["qkv_bias"] = dice.random() < 0.5
    elif dice.random() < 0.5:
        raw["attention_bias"] = raw["mlp_bias"] = dice.random() < 0.5


def _iquestcoder(raw: Raw, dice: Random) -> None:
    _sometimes(dice, 0.3, lambda: raw.update(clip_qkv=None))
    _sometimes(dice, 0.3, lambda: raw.update(use_sliding_window=False, sliding_window=None))


def _qwen_windows(raw: Raw, dice: Random) -> None:
    """The four ways to say which layers have a window, and those that say none."""
    layers = raw["num_hidden_layers"]
    choice = dice.choice(["absent", "off", "on", "list", "null"])
    if choice == "off":
        raw.update(use_sliding_window=False, sliding_window=8, max_window_layers=1)
    elif choice == "on":
        raw.update(
            use_sliding_window=True, sliding_window=6, max_window_layers=dice.choice([0, 1, 28])
        )
    elif choice == "list":
        kinds = [dice.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
        raw.update(use_sliding_window=True, sliding_window=5, layer_types=kinds)
    elif choice == "null":
        raw.update(use_sliding_window=True, sliding_window=None)


def _qwen2(raw: Raw, dice: Random) -> None:
    _qwen_windows(raw, dice)


def _qwen3(raw: Raw, dice: Random) -> None:
    _qwen_windows(raw, dice)
    _sometimes(dice, 0.3, lambda: raw.update(attention_bias=dice.random() < 0.7))


def _qwen3_moe(raw: Raw, dice: Random) -> None:
    raw.update(
        num_experts=dice.choice([4, 6]),
        num_experts_per_tok=dice.choice([1, 2, 3]),
        moe_intermediate_size=dice.choice([16, 24]),
        norm_topk_prob=dice.random() < 0.6,
    )
    _sometimes(dice, 0.3, lambda: raw.update(decoder_sparse_step=dice.choice([1, 2])))
    _sometimes(dice, 0.3, lambda: raw.update(mlp_only_layers=dice.choice([[], [0], [1]])))
    _sometimes(dice, 0.3, lambda: raw.update(attention_bias=True))
    if dice.random() < 0.4:
        raw.update(use_sliding_window=True, sliding_window=dice.choice([5, None]))


FAMILIES: dict[str, Callable[[Raw, Random], None]] = {
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _phi3,
    "internlm3": _internlm3,
    "iquestcoder": _iquestcoder,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
