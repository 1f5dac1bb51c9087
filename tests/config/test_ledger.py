from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.config.ignored import must_be_read
from archzoo.errors import ConfigError

read = ModelConfig.from_dict


def test_every_field_has_exactly_one_fate(llama: Any) -> None:
    raw = llama(
        rope_scaling={"rope_type": "yarn", "factor": 2.0, "beta_fast": None, "type": "yarn"},
        layer_types=None,
        acme_dial=3,
        _name_or_path="x",
        attention_dropout=0.1,
        sliding_window=7,
        use_sliding_window=False,
        original_max_position_embeddings=128,
    )
    ledger = read(raw).ledger
    fates = [*ledger.consumed, *ledger.ignored, *ledger.unknown]
    assert ledger.unread == () and len(fates) == len(set(fates))
    assert set(raw) <= set(fates)
    assert {f"rope_scaling.{key}" for key in raw["rope_scaling"]} <= set(fates)
    assert ledger.unknown == ("acme_dial",)
    assert ledger.ignored["_name_or_path"] == "private"
    assert ledger.ignored["attention_dropout"] == "training only"
    assert ledger.ignored["sliding_window"] == "llama has no attention window"
    assert ledger.ignored["rope_scaling.beta_fast"] == "null"


def test_defaults_name_their_source(llama: Any) -> None:
    gone = ("rms_norm_eps", "max_position_embeddings", "rope_theta", "hidden_act")
    config = read(llama(absent=gone))
    assert config.rms_norm_eps == 1e-6 and config.max_position_embeddings == 2048
    assert config.rope is not None and config.rope.theta == 10000.0
    for name in gone:
        assert config.ledger.defaulted[name] == "llama default"
    assert config.ledger.defaulted["head_dim"] == "hidden_size / num_attention_heads"
    assert "rms_norm_eps" not in config.ledger.consumed
    assert "rms_norm_eps = 1e-06: defaulted (llama default)" in str(config.ledger)


@pytest.mark.parametrize(
    "name",
    [
        "rope_thetaa",
        "rope_local_base_freq",
        "no_rope_layers",
        "rotary_pct",
        "rotary_emb_base",
        "use_dynamic_ntk",
        "yarn_factor",
        "mrope_section",
        "quantization",
        "quant_config",
        "kv_cache_quant_algo",
    ],
)
def test_unread_rotary_and_quantization_fields_are_refused(llama: Any, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(llama(**{name: 1}), file="c.json")
    assert caught.value.field == name and "llama family" in str(caught.value)
    assert read(llama(**{name: None})).ledger.ignored[name] == "null"


@pytest.mark.parametrize(
    ("name", "usual"), [("is_causal", True), ("use_bidirectional_attention", False)]
)
def test_attention_of_another_kind_is_refused_unless_a_family_reads_it(
    llama: Any, name: str, usual: bool
) -> None:
    """Embedding models made of language models state it; ``transformers`` obeys."""
    rule = read(llama(**{name: usual})).ledger.ignored[name]
    assert rule == "what is done anyway"
    for other in (not usual, "all", int(usual)):
        with pytest.raises(ConfigError, match=f"only {usual} is served") as caught:
            read(llama(**{name: other}), file="c.json")
        assert caught.value.field == name
    adapter = LLAMA_LIKE.extend("two-way", extra={name: lambda value, where: value})
    assert read(llama(**{name: not usual}), adapter).extra[name] is not usual
    assert read(llama(**{name: None})).ledger.ignored[name] == "null"


def test_words_that_only_resemble_are_let_through() -> None:
    for name in ("europe", "dropout", "antique", "hidden_size", "scope", "tropes"):
        assert not must_be_read(name), name


def test_an_adapter_reads_or_ignores_such_fields_by_name(llama: Any) -> None:
    adapter = LLAMA_LIKE.extend(
        "neo",
        names={"partial_rotary_factor": ("rotary_pct",), "rope_theta": ("rotary_emb_base",)},
        ignored={"rope_legacy": "never used"},
        partial_rotary=True,
    )
    raw = llama(absent=("rope_theta",), rotary_pct=0.5, rotary_emb_base=777, rope_legacy=True)
    config = read(raw, adapter)
    assert config.rope is not None
    assert (config.rope.rotary_dim, config.rope.theta) == (8, 777.0)
    assert config.ledger.ignored["rope_legacy"] == "never used"


def test_a_default_does_not_cover_an_unread_field_of_the_same_name(llama: Any) -> None:
    adapter = LLAMA_LIKE.extend("acme", names={"mlp_bias": ("ffn_bias",)})
    config = read(llama(mlp_bias=True), adapter)
    assert config.mlp_bias is False
    assert config.ledger.defaulted["mlp_bias"] == "acme default"
    assert config.ledger.unknown == ("mlp_bias",)


def test_long_values_are_shortened(llama: Any) -> None:
    ledger = read(llama(acme_blob="x" * 10_000)).ledger
    assert max(len(entry.value) for entry in ledger.entries) <= 80
