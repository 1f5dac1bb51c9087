from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig, config_from_gguf
from archzoo.config.gguf import ARCHITECTURES, ROPE_DIVISORS, _fraction, shortest_float32
from archzoo.errors import ConfigError
from archzoo.weights.gguf_names import GGUF_INTERLEAVED_QK

SMOL: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Smollm2 135M",
    "general.file_type": 3,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.tokens": ["a"] * 49152,
}
NAMES = ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"]


def raw_of(names: Any = NAMES, absent: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    divisors = changes.pop("rope_divisors", None)
    changes = {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    metadata = {k: v for k, v in {**SMOL, **changes}.items() if k not in absent}
    return config_from_gguf(metadata, names, rope_divisors=divisors, file="m.gguf")


def config_of(*args: Any, **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(raw_of(*args, **changes), file="m.gguf")


def refused(says: str, *args: Any, **changes: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(*args, **changes)
    assert says in str(caught.value) and "m.gguf" in str(caught.value), str(caught.value)


def test_smollm2() -> None:
    config = config_of()
    assert config.architectures == ("LlamaForCausalLM",)
    assert (config.num_hidden_layers, config.hidden_size) == (30, 576)
    assert (config.intermediate_size, config.vocab_size) == (1536, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (8192, 1e-5)
    assert (config.tie_word_embeddings, config.tie_stated) == (True, True)
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (1, (2,), 2)
    assert config.rope is not None
    assert (config.rope.rope_type, config.rope.theta, config.rope.rotary_dim) == (
        "default",
        100000.0,
        64,
    )
    assert not (config.attention_bias or config.o_proj_bias or config.mlp_bias)
    assert config.ledger.unknown == ()


def test_an_output_tensor_unties_the_head() -> None:
    assert config_of([*NAMES, "output.weight"]).tie_word_embeddings is False


def test_every_architecture_has_a_row_order_and_its_own_word() -> None:
    assert set(ARCHITECTURES) == set(GGUF_INTERLEAVED_QK)


@pytest.mark.parametrize("name", ["mamba", "", None, 3, ["llama"]])
def test_unknown_architecture_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"general\.architecture: .* is not read from GGUF") as e:
        config_from_gguf({**SMOL, "general.architecture": name}, NAMES)
    assert repr(name) in str(e.value)
    with pytest.raises(ConfigError, match=r"general\.architecture"):
        config_from_gguf({}, [])


@pytest.mark.parametrize(
    "key",
    "block_count context_length embedding_length feed_forward_length attention.head_count "
    "attention.layer_norm_rms_epsilon".split(),
)
def test_missing_keys_are_named(key: str) -> None:
    refused(f"llama.{key}: missing", absent=(f"llama.{key}",))


@pytest.mark.parametrize("value", ["30", 0, -1, True, 1.5, None, 2**50])
def test_sizes_of_the_wrong_kind(value: Any) -> None:
    for key in ("block_count", "feed_forward_length", "attention__head_count", "embedding_length"):
        refused(f"llama.{key.replace('__', '.')}", **{key: value})


def test_kv_heads_and_lists_by_layer() -> None:
    absent = ("llama.attention.head_count_kv",)
    assert config_of(absent=absent).num_key_value_heads == 9
    assert config_of(attention__head_count_kv=[3] * 30).num_key_value_heads == 3
    refused("sizes that differ by layer", attention__head_count_kv=[3, 1, 3])
    refused("has 3 values for 30 layers", attention__head_count_kv=[3] * 3)
    many = {"attention__head_count": [9] * 30, "attention__key_length": [64] * 30}
    assert config_of(**many, rope__dimension_count=[64] * 30).head_dim == 64
    refused("sizes that differ by layer", feed_forward_length=[])


def test_head_width() -> None:
    wide = {"attention__key_length": 128, "attention__value_length": 128}
    assert config_of(**wide, rope__dimension_count=128).head_dim == 128
    refused(
        "differs from the key length 128", attention__key_length=128, attention__value_length=64
    )
    refused("576 is not a multiple of attention.head_count=7", attention__head_count=7)
    refused("differs from the key length 64", attention__value_length=32)


def test_vocabulary_from_the_key_or_the_token_list() -> None:
    assert config_of(absent=("llama.vocab_size",)).vocab_size == 49152
    refused("vocab_size", absent=("llama.vocab_size", "tokenizer.ggml.tokens"))


def test_token_ids_absent_stay_absent() -> None:
    config = config_of(absent=("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"))
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_biases_come_from_tensor_names() -> None:
    q = [*NAMES, "blk.0.attn_q.bias"]
    config = config_of(q)
    assert (config.attention_bias, config.o_proj_bias) == (True, False)
    config = config_of([*q, "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"])
    assert (config.attention_bias, config.o_proj_bias, config.mlp_bias) == (True, True, True)
    assert raw_of()["attention_bias"] is False


def test_partial_rotary_width_survives_the_fraction() -> None:
    for head_dim in range(2, 130):
        for width in range(1, head_dim + 1):
            assert int(head_dim * _fraction(width, head_dim)) == width
    glm = LLAMA_LIKE.extend("glm", partial_rotary=True)
    rope = ModelConfig.from_dict(raw_of(rope__dimension_count=32), glm).rope
    assert rope is not None and rope.rotary_dim == 32
    refused("rope.dimension_count", rope__dimension_count=65)


def test_a_partial_width_is_refused_where_the_family_has_none() -> None:
    refused("0.5 rotates 32 of head_dim=64", rope__dimension_count=32)
    assert "partial_rotary_factor" not in raw_of(rope__dimension_count=64)


def test_scaling() -> None:
    linear = config_of(rope__scaling__type="linear", rope__scaling__factor=4.0).rope
    assert linear is not None and (linear.rope_type, linear.factor) == ("linear", 4.0)
    legacy = config_of(rope__scale_linear=2.0).rope
    assert legacy is not None and (legacy.rope_type, legacy.factor) == ("linear", 2.0)
    off = {"rope__scaling__type": "none", "rope__scaling__original_context_length": 8192}
    for changes in (off, {"rope__scale_linear": 1.0}, {"rope__scaling__factor": 1.0}):
        rope = config_of(**changes).rope
        assert rope is not None and rope.rope_type == "default"
    yarn = config_of(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=2048,
        rope__scaling__finetuned=True,
    ).rope
    assert yarn is not None
    assert (yarn.rope_type, yarn.factor, yarn.attention_factor) == ("yarn", 4.0, None)
    assert yarn.original_max_position_embeddings == 2048
    refused("rope_type", rope__scaling__type="fancy", rope__scaling__factor=2.0)


def test_attention_factor_is_the_product_with_yarns_own() -> None:
    rope = config_of(
        rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__attn_factor=1.0
    ).rope
    assert rope is not None and rope.attention_factor == pytest.approx(1.138629436)


def test_divisors_stored_as_a_tensor() -> None:
    refused("pass rope_divisors", [*NAMES, ROPE_DIVISORS])
    divisors = [1.0 + i for i in range(32)]
    rope = config_of([*NAMES, ROPE_DIVISORS], rope_divisors=divisors).rope
    assert rope is not None
    assert rope.short_factor == rope.long_factor == tuple(divisors)
    assert (rope.rope_type, rope.attention_factor) == ("longrope", 1.0)
    refused("expected 32", rope_divisors=divisors[:-1])
    scaled = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    refused("one scaling is served", rope_divisors=divisors, **scaled)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope__scaling__yarn_log_multiplier": 0.1},
        {"rope__scaling__attn_factor": 2.0},
        {"attention__sliding_window": 4096},
        {"attention__sliding_window": [0] * 29 + [4096]},
        {"attention__causal": False},
        {"attention__clamp_kqv": 8.0},
        {"expert_count": 8},
        {"logit_scale": 2.0},
        {"pooling_type": 1},
        {"expert_gating_func": 2},
        {"expert_weights_scale": 2.5},
        {"leading_dense_block_count": 1},
    ],
)
def test_keys_that_change_results_are_refused(changes: dict[str, Any]) -> None:
    refused("would change results", **changes)


def test_other_keys_pass_on_to_the_ledger() -> None:
    inert = {
        "attention__causal": True,
        "expert_count": 0,
        "pooling_type": 3,
        "tensor_data_layout": "Meta AI original pth",
        "attention__sliding_window": [0] * 30,
    }
    config = config_of(**inert, acme=1)
    assert "llama.acme" in config.ledger.unknown
    refused("llama.use_quantized_cache", use_quantized_cache=1)


@pytest.mark.parametrize(
    ("value", "short"),
    [(9.999999747378752e-06, 1e-5), (0.10000000149011612, 0.1), (1e-5, 1e-5), (1e60, 1e60)],
)
def test_shortest_decimal_of_a_float32(value: float, short: float) -> None:
    assert shortest_float32(value) == short
