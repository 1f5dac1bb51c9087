"""Family defaults and rope semantics held against transformers' config classes."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.phi3.configuration_phi3 import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config

from archzoo.config import (
    LLAMA_LIKE,
    ConfigAdapter,
    ModelConfig,
    window_everywhere,
    window_if_switched_on,
)
from archzoo.config.values import flag, integer
from archzoo.errors import ConfigError

MISTRAL = LLAMA_LIKE.extend(
    "mistral",
    window=window_everywhere,
    defaults={
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "num_key_value_heads": 8,
    },
)
QWEN2 = LLAMA_LIKE.extend(
    "qwen2",
    window=window_if_switched_on,
    names={"attention_bias": (), "o_proj_bias": (), "mlp_bias": ()},
    defaults={
        "attention_bias": True,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "bos_token_id": None,
        "eos_token_ids": None,
    },
)
PHI3 = LLAMA_LIKE.extend("phi3", partial_rotary=True)
FIELD_OF_CLASS = {"eos_token_ids": "eos_token_id", "rope_theta": "default_theta"}
NOT_IN_CLASS = {"o_proj_bias", "attention_bias", "mlp_bias"}


def adapter_differences(adapter: ConfigAdapter, config_class: Any) -> list[str]:
    """Defaults that are not the reference class's; empty when all agree."""
    reference = {name: getattr(config_class, name, None) for name in dir(config_class)}
    different = []
    for field, value in adapter.defaults.items():
        name = FIELD_OF_CLASS.get(field, field)
        if field in NOT_IN_CLASS and name not in reference:
            continue
        if reference.get(name) != value:
            different.append(f"{field}: {value!r}, {config_class.__name__} {reference.get(name)!r}")
    return different


@pytest.mark.parametrize(
    ("adapter", "config_class"),
    [
        (LLAMA_LIKE, LlamaConfig),
        (MISTRAL, MistralConfig),
        (QWEN2, Qwen2Config),
    ],
)
def test_defaults_equal_transformers(adapter: ConfigAdapter, config_class: Any) -> None:
    assert adapter_differences(adapter, config_class) == []


def test_the_comparison_sees_a_difference() -> None:
    wrong = LLAMA_LIKE.extend("wrong", defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6})
    assert len(adapter_differences(wrong, LlamaConfig)) == 2


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.5] * 8, "long_factor": [3.0] * 8}


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"rope_theta": None},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 123.0}},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "longrope", **LONG}, "partial_rotary_factor": 1.0},
        {"partial_rotary_factor": 1.0},
    ],
)
def test_rope_parameters_equal_transformers(llama: Any, over: dict[str, Any]) -> None:
    raw = llama(**over)
    reference: Any = LlamaConfig(**raw)
    rope = ModelConfig.from_dict(raw).rope
    assert rope is not None
    parameters: dict[str, Any] = {**(reference.rope_parameters or {})}
    theta = parameters.pop("rope_theta")
    assert rope.theta == (10000.0 if theta is None else theta)
    parameters.pop("type", None)
    partial = parameters.pop("partial_rotary_factor", 1.0)
    assert rope.rotary_dim == int(reference.head_dim * partial)
    assert rope.max_position_embeddings == reference.max_position_embeddings
    for key, value in parameters.items():
        ours = getattr(rope, key)
        assert (list(ours) if isinstance(ours, tuple) else ours) == value, key


@pytest.mark.parametrize("family", [LLAMA_LIKE, MISTRAL])
def test_a_factor_that_transformers_does_not_obey_is_refused(
    llama: Any, family: ConfigAdapter
) -> None:
    raw = llama(partial_rotary_factor=0.5)
    reference = LlamaRotaryEmbedding(LlamaConfig(**raw))
    assert reference.inv_freq.numel() == 8, "transformers rotates all 16 features"
    with pytest.raises(ConfigError, match=f"the {family.name} family rotates all"):
        ModelConfig.from_dict(raw, family)


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.25])
def test_phi3_equals_transformers(llama: Any, factor: float) -> None:
    raw = llama(partial_rotary_factor=factor, pad_token_id=0)
    reference = Phi3RotaryEmbedding(Phi3Config(**raw))
    rope = ModelConfig.from_dict(raw, PHI3).rope
    assert rope is not None and rope.rotary_dim == 2 * reference.inv_freq.numel()


@pytest.mark.parametrize(
    ("over", "absent"),
    [
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, ()),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}, ()),
        ({"use_sliding_window": True, "max_window_layers": 2}, ()),
        ({}, ("num_key_value_heads", "bos_token_id", "eos_token_id")),
    ],
)
def test_qwen2_equals_transformers(llama: Any, over: dict[str, Any], absent: Any) -> None:
    raw = llama(absent=absent, num_attention_heads=32, hidden_size=512, **over)
    reference: Any = Qwen2Config(**raw)
    config = ModelConfig.from_dict(raw, QWEN2)
    kinds = ["sliding_attention" if w else "full_attention" for w in config.sliding_windows]
    assert kinds == reference.layer_types
    assert all(w in (None, reference.sliding_window) for w in config.sliding_windows)
    assert config.num_key_value_heads == reference.num_key_value_heads
    assert config.bos_token_id == reference.bos_token_id
    assert (config.attention_bias, config.o_proj_bias) == (True, False)


def test_internlm3_has_two_separate_switches(llama: Any) -> None:
    internlm3 = LLAMA_LIKE.extend(
        "internlm3",
        names={
            "attention_bias": ("qkv_bias",),
            "o_proj_bias": ("bias",),
            "mlp_bias": ("bias",),
        },
    )
    config = ModelConfig.from_dict(llama(qkv_bias=True, bias=False, head_dim=16), internlm3)
    assert (config.attention_bias, config.o_proj_bias, config.mlp_bias) == (True, False, False)
    assert config.ledger.consumed["bias"] == "o_proj_bias, mlp_bias"
    assert config.ledger.unknown == ()


def test_extra_fields_are_checked_and_kept(llama: Any) -> None:
    moe = LLAMA_LIKE.extend(
        "moe",
        extra={"num_experts": integer, "norm_topk_prob": flag},
        defaults={"norm_topk_prob": False},
    )
    config = ModelConfig.from_dict(llama(num_experts=8), moe)
    assert config.extra == {"num_experts": 8, "norm_topk_prob": False}
    assert config.ledger.consumed["num_experts"] == "num_experts"
    assert config.ledger.defaulted["norm_topk_prob"] == "moe default"
    assert ModelConfig.from_dict(llama(), moe).extra["num_experts"] is None
    with pytest.raises(ConfigError, match="num_experts: '8' is not an integer"):
        ModelConfig.from_dict(llama(num_experts="8"), moe)


def test_extending_keeps_what_is_not_changed() -> None:
    glm = LLAMA_LIKE.extend("glm", partial_rotary=True)
    assert glm.extend("glm4").partial_rotary and not LLAMA_LIKE.partial_rotary
    child = LLAMA_LIKE.extend("child", defaults={"hidden_act": "gelu"}, rotary=False)
    assert child.defaults["rms_norm_eps"] == LLAMA_LIKE.defaults["rms_norm_eps"]
    assert (child.name, child.defaults["hidden_act"], child.rotary) == ("child", "gelu", False)
    assert LLAMA_LIKE.defaults["hidden_act"] == "silu"
    with pytest.raises(TypeError):
        LLAMA_LIKE.extend("child", windows=None)


def test_a_wrong_default_of_an_adapter_is_named(llama: Any) -> None:
    broken = LLAMA_LIKE.extend("broken", defaults={"rms_norm_eps": "small"})
    with pytest.raises(ConfigError, match="broken adapter, default of rms_norm_eps"):
        ModelConfig.from_dict(llama(absent=("rms_norm_eps",)), broken)
