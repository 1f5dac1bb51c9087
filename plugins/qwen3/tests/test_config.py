"""What a config may leave out, and where it says that windows slide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen2Config, Qwen3Config

from archzoo.config import ModelConfig
from archzoo.errors import ConfigError
from archzoo_qwen3.adapters import QWEN2, QWEN3

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 1024, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 32,
}  # fmt: skip
FAMILIES = {"qwen2": (QWEN2, Qwen2Config), "qwen3": (QWEN3, Qwen3Config)}
ON = {"use_sliding_window": True, "sliding_window": 8}
SLIDE, FULL = "sliding_attention", "full_attention"

Family = tuple[Any, type[PreTrainedConfig]]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_defaults_are_those_of_transformers_and_are_told(family: Family) -> None:
    adapter, kind = family
    config, reference = ModelConfig.from_dict(SIZES, adapter), kind(**SIZES)
    for name in (
        "max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "hidden_act",
        "tie_word_embeddings", "bos_token_id", "pad_token_id",
    ):  # fmt: skip
        assert getattr(config, name) == getattr(reference, name), name
    assert config.eos_token_ids == () and reference.eos_token_id is None
    head_dim = getattr(reference, "head_dim", 1024 // 32)
    assert config.head_dim == head_dim == (128 if adapter is QWEN3 else 32)
    switched_on = kind(**SIZES, use_sliding_window=True)
    for name in ("sliding_window", "max_window_layers"):
        assert adapter.defaults[name] == getattr(switched_on, name)
    assert config.attention_bias is (adapter is QWEN2), "transformers' Qwen2 always has them"
    assert not config.o_proj_bias and not config.mlp_bias
    told = {"max_position_embeddings", "num_key_value_heads", "rope_theta", "attention_bias"}
    assert told <= config.ledger.defaulted.keys()
    assert set(config.ledger.defaulted.values()) >= {f"{adapter.name} default"}


def test_the_rotary_base_is_that_of_every_released_qwen(family: Family) -> None:
    """Not what transformers falls back to; no checkpoint of Qwen's leaves it out."""
    adapter, kind = family
    bare, stated = (
        ModelConfig.from_dict({**SIZES, **more}, adapter) for more in ({}, {"rope_theta": 5e4})
    )
    assert bare.rope is not None and bare.rope.theta == 1_000_000.0
    assert stated.rope is not None and stated.rope.theta == 5e4
    assert kind(**SIZES).rope_parameters["rope_theta"] == 10_000.0


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"sliding_window": 8},
        {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1},
        {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 1},
        {**ON},
        {**ON, "max_window_layers": 0},
        {**ON, "max_window_layers": 3},
        {**ON, "max_window_layers": 0, "layer_types": [FULL, SLIDE, FULL, SLIDE]},
        {**ON, "max_window_layers": 28, "layer_types": [SLIDE] * 4},
        {"use_sliding_window": True, "max_window_layers": 2},
    ],
    ids=str,
)
def test_windows_lie_where_transformers_puts_them(family: Family, stated: dict[str, Any]) -> None:
    adapter, kind = family
    config, reference = ModelConfig.from_dict({**SIZES, **stated}, adapter), kind(**SIZES, **stated)
    want = [reference.sliding_window if each == SLIDE else None for each in reference.layer_types]
    assert list(config.sliding_windows) == want


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"layer_types": [SLIDE] * 4}, "layer_types"),
        ({**ON, "layer_types": [SLIDE] * 3}, "3 entries for num_hidden_layers=4"),
        ({**ON, "layer_types": [FULL, FULL, FULL, "chunked_attention"]}, r"layer_types\[3\]"),
        ({**ON, "max_window_layers": -1}, "max_window_layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
    ids=str,
)
def test_what_would_be_half_obeyed_is_refused(
    family: Family, stated: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        ModelConfig.from_dict({**SIZES, **stated}, family[0])


def test_spellings_of_every_age_read_alike(family: Family) -> None:
    """What transformers writes now, and what the models' own files say."""
    adapter, kind = family
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    sizes = {**SIZES, "head_dim": 16} if adapter is QWEN3 else SIZES
    written = kind(**sizes, rope_parameters={**yarn, "rope_theta": 1e6})
    new = json.loads(written.to_json_string(use_diff=False))
    old = {**new, "rope_theta": 1e6, "rope_scaling": {**yarn, "type": "yarn"}}
    del old["rope_parameters"], old["layer_types"]
    first, second = (ModelConfig.from_dict(raw, adapter) for raw in (new, old))
    assert first == second
    assert first.rope is not None and first.rope.rope_type == "yarn"


@pytest.mark.parametrize("kind", ["mrope", "default"])
def test_axes_of_a_multimodal_model_are_one_axis_for_text(family: Family, kind: str) -> None:
    """Qwen2.5-VL's and Qwen3-VL's text models, saved alone."""
    block = {"rope_type": kind, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    raw = {**SIZES, "rope_theta": 1e6}
    stated = {**raw, "rope_scaling": block, "use_mrope": False}  # as DeepSeek-R1-Distill-Qwen
    config = ModelConfig.from_dict(stated, family[0])
    assert config.rope == ModelConfig.from_dict(raw, family[0]).rope
    rule = "a text token has one position on every axis"
    assert config.ledger.ignored["rope_scaling.mrope_section"] == rule


def test_a_switch_that_qwen2_does_not_have_changes_nothing() -> None:
    stated = {"attention_bias": False, "qkv_bias": False, "mlp_bias": True}
    config = ModelConfig.from_dict({**SIZES, **stated}, QWEN2)
    assert (config.attention_bias, config.o_proj_bias, config.mlp_bias) == (True, False, False)
    assert {config.ledger.ignored[name] for name in stated} == {
        "qwen2 has biases of q, k and v only"
    }
