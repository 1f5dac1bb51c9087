from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.errors import ConfigError

read = ModelConfig.from_dict


def refused(raw: dict[str, Any], *says: str, **kwargs: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(raw, file="dir/config.json", **kwargs)
    text = str(caught.value)
    assert text.startswith("dir/config.json")
    for part in says:
        assert part in text, text


def test_plain_file(llama: Any) -> None:
    config = read(llama(), file="f")
    assert config.architectures == ("LlamaForCausalLM",)
    assert (config.model_type, config.dtype, config.file) == ("llama", "float32", "f")
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (128, 64, 96)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.attention_bias, config.o_proj_bias, config.mlp_bias) == (False, False, False)
    assert (config.rms_norm_eps, config.hidden_act) == (1e-5, "silu")
    assert config.sliding_windows == (None,) * 4
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (1, (2,), None)
    assert config.quantization is config.num_labels is config.attn_logit_softcap is None
    assert config.rope is not None and config.rope.theta == 50000.0
    assert config.rope_for(3) is config.rope and config.window(0) is None


@pytest.mark.parametrize("layer", [-1, 4])
def test_layers_outside_the_model_are_refused(llama: Any, layer: int) -> None:
    config = read(llama())
    for ask in (config.window, config.rope_for):
        with pytest.raises(ConfigError, match=f"layer {layer} .* 0 to 3"):
            ask(layer)


def test_explicit_null_means_absent_for_every_optional_field(llama: Any) -> None:
    optional = (
        "num_key_value_heads head_dim rms_norm_eps hidden_act max_position_embeddings rope_theta "
        "rope_scaling rope_parameters tie_word_embeddings torch_dtype dtype attention_bias "
        "mlp_bias sliding_window layer_types quantization_config architectures model_type "
        "attn_logit_softcapping final_logit_softcapping num_labels id2label partial_rotary_factor "
        "original_max_position_embeddings text_config rope_interleaved pad_token_id"
    ).split()
    for name in optional:
        absent, null = read(llama(absent=(name,))), read(llama(**{name: None}))
        assert absent == null, name
    everything = read(llama(**dict.fromkeys(optional)))
    assert everything.num_key_value_heads == 4
    assert not everything.tie_stated
    assert everything.ledger.ignored["rope_scaling"] == "null"


@pytest.mark.parametrize(
    "name",
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads".split(),
)
@pytest.mark.parametrize("absent", [True, False])
def test_sizes_must_be_stated(llama: Any, name: str, absent: bool) -> None:
    raw = llama(absent=(name,)) if absent else llama(**{name: None})
    refused(raw, f": {name}: missing")


@pytest.mark.parametrize(
    "name",
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings".split(),
)
@pytest.mark.parametrize(
    "value",
    [
        0,
        -4,
        True,
        "64",
        1.5,
        float("nan"),
        float("inf"),
        [64],
        {},
        2**40,
        pytest.param(10**400, id="huge"),
    ],
)
def test_sizes_of_the_wrong_kind_are_refused(llama: Any, name: str, value: Any) -> None:
    refused(llama(**{name: value}), f": {name}: ")


@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta", "attn_logit_softcapping"])
@pytest.mark.parametrize(
    "value", [-1.0, True, "1", float("nan"), float("inf"), pytest.param(10**400, id="huge"), [1.0]]
)
def test_numbers_of_the_wrong_kind_are_refused(llama: Any, name: str, value: Any) -> None:
    refused(llama(**{name: value}), f": {name}: ")


@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_switches_are_true_or_false(llama: Any, name: str, value: Any) -> None:
    refused(llama(**{name: value}), f": {name}: ", "neither true nor false")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [""]),
        ("architectures", [None]),
        ("model_type", 7),
        ("hidden_act", ""),
        ("torch_dtype", "int8"),
        ("torch_dtype", ["float32"]),
        ("rms_norm_eps", 1.0),
        ("eos_token_id", [2, "3"]),
        ("eos_token_id", True),
        ("eos_token_id", -2),
        ("id2label", ["a"]),
        ("text_config", [1]),
    ],
)
def test_other_fields_of_the_wrong_kind(llama: Any, name: str, value: Any) -> None:
    refused(llama(**{name: value}), name)


def test_raw_config_must_be_an_object_with_names() -> None:
    refused([1], "list instead of a JSON object")  # type: ignore[arg-type]  # on purpose
    refused({3: 1}, "key 3 is not a string")  # type: ignore[dict-item]  # on purpose


# --------------------------------------------------------------------------------- heads


@pytest.mark.parametrize("missing", [True, False])
def test_kv_heads_default_to_all_heads(llama: Any, missing: bool) -> None:
    key = "num_key_value_heads"
    config = read(llama(absent=(key,)) if missing else llama(**{key: None}))
    assert config.num_key_value_heads == 4
    assert config.ledger.defaulted[key] == "num_attention_heads"


def test_absent_kv_heads_follow_a_family_that_states_them_and_null_does_not(llama: Any) -> None:
    family = LLAMA_LIKE.extend("mistral", defaults={"num_key_value_heads": 1})
    assert read(llama(absent=("num_key_value_heads",)), family).num_key_value_heads == 1
    assert read(llama(num_key_value_heads=None), family).num_key_value_heads == 4


def test_kv_heads_must_divide_heads(llama: Any) -> None:
    refused(llama(num_key_value_heads=3), "3 does not divide num_attention_heads=4")
    refused(llama(num_key_value_heads=8), "8 does not divide num_attention_heads=4")


def test_explicit_head_dim_beats_division(llama: Any) -> None:
    config = read(llama(head_dim=32))
    assert config.head_dim == 32
    assert config.rope is not None and config.rope.head_dim == config.rope.rotary_dim == 32
    assert "head_dim" in config.ledger.consumed


def test_odd_division_needs_head_dim(llama: Any) -> None:
    refused(llama(num_attention_heads=6), "64 is not a multiple of num_attention_heads=6")
    assert read(llama(num_attention_heads=6, head_dim=16)).head_dim == 16


# --------------------------------------------------------------------------- small fields


@pytest.mark.parametrize(
    ("stated", "qkv", "o_proj"),
    [
        ({}, False, False),
        ({"attention_bias": True}, True, True),
        ({"qkv_bias": True}, True, False),
        ({"qkv_bias": True, "bias": False}, True, False),
        ({"qkv_bias": False, "bias": True}, False, True),
        ({"bias": True}, True, True),
        ({"attention_bias": None, "bias": True}, True, True),
        ({"attention_bias": True, "bias": False}, True, True),
    ],
)
def test_bias_spellings(llama: Any, stated: dict[str, Any], qkv: bool, o_proj: bool) -> None:
    config = read(llama(**stated))
    assert (config.attention_bias, config.o_proj_bias) == (qkv, o_proj)
    assert config.mlp_bias is False
    assert read(llama(**stated, mlp_bias=True)).mlp_bias is True


def test_overridden_spelling_shows_in_the_ledger(llama: Any) -> None:
    config = read(llama(attention_bias=True, bias=False))
    assert config.ledger.ignored["bias"] == "attention_bias decides"
    both = read(llama(qkv_bias=True, bias=False))
    assert both.ledger.consumed["bias"] == "o_proj_bias"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "torch.bfloat16"}, "bfloat16"),
        ({"dtype": "half"}, "float16"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "float16"),
        ({"dtype": None, "torch_dtype": "float32"}, "float32"),
        ({}, None),
    ],
)
def test_dtype_spellings(llama: Any, stated: dict[str, Any], expected: str | None) -> None:
    raw = {**llama(absent=("torch_dtype",)), **stated}
    assert read(raw).dtype == expected


@pytest.mark.parametrize(
    ("eos", "expected"),
    [(7, (7,)), ([7, 9, 7], (7, 9)), ([], ()), (None, ()), (-1, ()), ([-1, 0], (0,))],
)
def test_end_tokens(llama: Any, eos: Any, expected: tuple[int, ...]) -> None:
    assert read(llama(eos_token_id=eos)).eos_token_ids == expected


def test_token_ids_absent_take_the_family_default_and_null_says_none(llama: Any) -> None:
    absent = read(llama(absent=("bos_token_id", "eos_token_id")))
    assert (absent.bos_token_id, absent.eos_token_ids) == (1, (2,))
    assert read(llama(bos_token_id=None)).bos_token_id is None
    assert read(llama(pad_token_id=-1)).pad_token_id is None


def test_tie_stated_or_by_default(llama: Any) -> None:
    absent = read(llama(absent=("tie_word_embeddings",)))
    assert (absent.tie_word_embeddings, absent.tie_stated) == (False, False)
    assert absent.ledger.defaulted["tie_word_embeddings"] == "llama default"
    stated = read(llama(tie_word_embeddings=True))
    assert (stated.tie_word_embeddings, stated.tie_stated) == (True, True)


def test_activation_aliases(llama: Any) -> None:
    assert read(llama(hidden_act="swish")).hidden_act == "silu"
    assert read(llama(hidden_act="gelu_new")).hidden_act == "gelu_new"


def test_soft_caps_of_a_family_that_declares_them(llama: Any) -> None:
    names = {f"{kind}_logit_softcap": (f"{kind}_logit_softcapping",) for kind in ("attn", "final")}
    capped = LLAMA_LIKE.extend("capped", names=names)
    config = read(llama(attn_logit_softcapping=50, final_logit_softcapping=30.0), capped)
    assert (config.attn_logit_softcap, config.final_logit_softcap) == (50.0, 30.0)
    with pytest.raises(ConfigError, match="final_logit_softcapping: 0 is out of range"):
        read(llama(final_logit_softcapping=0), capped)


def test_labels(llama: Any) -> None:
    names = {"0": "a", "1": "b", "2": "c"}
    assert read(llama(id2label=names)).num_labels == 3
    assert read(llama(num_labels=1)).num_labels == 1
    assert read(llama(num_labels=3, id2label=names)).num_labels == 3
    refused(llama(num_labels=2, id2label=names), "2 labels here, 3 in id2label")
    in_memory = {int(number): name for number, name in names.items()}  # as transformers has them
    assert read(llama(id2label=in_memory)).num_labels == 3
    assert read(llama(id2label=in_memory)).raw["id2label"] == names


def test_two_labels_where_a_classifier_states_none(llama: Any) -> None:
    """The default of transformers, which it does not write; anything stated comes first."""
    labelled = LLAMA_LIKE.with_labels()
    plain = ModelConfig.from_dict(llama(), labelled)
    assert plain.num_labels == 2
    assert plain.ledger.defaulted["num_labels"] == "llama default"
    for absent in ({"num_labels": None}, {"id2label": None}, {"id2label": {}}):
        assert ModelConfig.from_dict(llama(**absent), labelled).num_labels == 2
    for stated in ({"num_labels": 1}, {"id2label": {"0": "good"}}):
        config = ModelConfig.from_dict(llama(**stated), labelled)
        assert config.num_labels == 1 and "num_labels" not in config.ledger.defaulted
    with pytest.raises(ConfigError, match="2 labels here, 1 in id2label"):
        ModelConfig.from_dict(llama(num_labels=2, id2label={"0": "good"}), labelled)


def test_a_null_head_width_overrules_the_familys(llama: Any) -> None:
    wide = LLAMA_LIKE.extend("wide", defaults={"head_dim": 128})
    assert ModelConfig.from_dict(llama(), wide).head_dim == 128
    config = ModelConfig.from_dict(llama(head_dim=None), wide)
    assert config.head_dim == 16
    assert config.ledger.consumed["head_dim"] == "head_dim"


# ---------------------------------------------------------------------------- quantization


@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_quantization_block(llama: Any, name: str) -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "kv": None}
    config = read(llama(**{name: block}))
    assert config.quantization == {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert config.ledger.consumed[f"{name}.weight_block_size"]
    assert config.ledger.ignored[f"{name}.kv"] == "null"


def test_a_switch_of_bitsandbytes_names_its_method(llama: Any) -> None:
    config = read(llama(quantization_config={"load_in_4bit": True}))
    assert config.quantization == {"quant_method": "bitsandbytes", "load_in_4bit": True}
    refused(llama(quantization_config={"load_in_4bit": False}), "quant_method: missing")


def test_compression_config_implies_its_method(llama: Any) -> None:
    config = read(llama(compression_config={"format": "pack-quantized"}))
    assert config.quantization is not None
    assert config.quantization["quant_method"] == "compressed-tensors"
    assert "quantization.quant_method" in config.ledger.defaulted


@pytest.mark.parametrize("block", [{}, {"bits": 4}, "fp8", [1], False, {"quant_method": 4}])
def test_quantization_without_a_method_is_refused(llama: Any, block: Any) -> None:
    refused(llama(quantization_config=block), "quantization_config")


def test_two_different_quantizations_are_refused(llama: Any) -> None:
    one, two = {"quant_method": "fp8"}, {"quant_method": "gptq"}
    refused(llama(quantization_config=one, compression_config=two), "differs from")
    assert read(llama(quantization_config=one, compression_config=dict(one))).quantization == one


# -------------------------------------------------------------------------------- wrappers


def wrapped(llama: Any, absent: tuple[str, ...] = (), **outer: Any) -> dict[str, Any]:
    inner = llama(absent=("architectures", "tie_word_embeddings", *absent))
    return {
        "architectures": ["LlavaForCausalLM"],
        "model_type": "llava",
        "text_config": inner,
        "vision_config": {"hidden_size": 999},
        "image_token_index": 5,
        **outer,
    }


def test_text_config_is_read_and_the_wrapper_shares_what_it_states(llama: Any) -> None:
    block = {"quant_method": "fp8"}
    raw = wrapped(llama, tie_word_embeddings=True, dtype="bfloat16", quantization_config=block)
    config = read(raw)
    assert config.architectures == ("LlavaForCausalLM",)
    assert (config.hidden_size, config.model_type) == (64, "llama")
    assert (config.tie_word_embeddings, config.tie_stated) == (True, True)
    assert config.quantization == block
    assert config.ledger.consumed["text_config.hidden_size"] == "hidden_size"
    assert config.ledger.ignored["vision_config"] == "outside text_config"
    assert config.ledger.unread == ()


def test_wrapper_contradictions(llama: Any) -> None:
    raw = wrapped(llama, tie_word_embeddings=True)
    raw["text_config"]["tie_word_embeddings"] = False
    refused(raw, "tie_word_embeddings: True here and False in text_config.tie_word_embeddings")
    refused(wrapped(llama, rope_theta=7.0), "rope_theta: 7.0 here and 50000.0 in text_config")
    raw = wrapped(llama, eos_token_id=77)
    assert read(raw).eos_token_ids == (2,)
    assert read(raw).ledger.ignored["eos_token_id"] == "text_config.eos_token_id decides"


def test_rotary_fields_outside_text_config_are_not_lost(llama: Any) -> None:
    scaling = {"type": "linear", "factor": 4.0}
    config = read(wrapped(llama, rope_scaling=scaling))
    assert config.rope is not None and config.rope.rope_type == "linear"
    refused(wrapped(llama, mrope_section=[1, 2]), "mrope_section")


def test_errors_inside_text_config_name_it(llama: Any) -> None:
    raw = wrapped(llama)
    raw["text_config"]["hidden_size"] = "64"
    refused(raw, "text_config.hidden_size: '64' is not an integer")


# ----------------------------------------------------------------------------- the value


def test_config_is_a_value(llama: Any) -> None:
    raw = llama(quantization_config={"quant_method": "fp8", "ignored_layers": ["lm_head"]})
    config = read(raw)
    again = pickle.loads(pickle.dumps(config))
    assert again == config and hash(again) == hash(config)
    raw["quantization_config"]["ignored_layers"].append("x")
    raw["hidden_size"] = 1
    assert config.raw["hidden_size"] == 64
    assert config.quantization is not None and config.quantization["ignored_layers"] == ["lm_head"]
    assert config.raw["quantization_config"]["ignored_layers"] == ["lm_head"]
    with pytest.raises(AttributeError):
        config.hidden_size = 3  # type: ignore[misc]  # on purpose


def test_reading_configs_imports_no_heavy_library() -> None:
    code = (
        "import sys, archzoo.config; "
        "bad = {'torch', 'transformers', 'numpy', 'safetensors', 'rich'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
