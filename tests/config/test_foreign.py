"""Fields of other families: refused where this one ignores them, unless told to ignore them."""

from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "harmless", "harmful"),
    [
        ("attn_logit_softcapping", None, 50.0),
        ("final_logit_softcapping", 0, 30.0),
        ("rope_interleaved", False, True),
        ("residual_multiplier", 1.0, 0.22),
        ("mlp_multipliers", [1.0, 1], [1.0, 0.5]),
        ("query_pre_attn_scalar", None, 224),
        ("hidden_activation", "silu", "gelu_pytorch_tanh"),
        ("use_parallel_residual", False, True),
        ("attention_chunk_size", None, 8192),
    ],
)
def test_foreign_fields(llama: Any, field: str, harmless: object, harmful: object) -> None:
    assert field in ModelConfig.from_dict(llama(**{field: harmless})).ledger.ignored
    raw = llama(**{field: harmful})
    with pytest.raises(
        ConfigError, match=f"{field}: .*llama is none of them.*ignore_fields"
    ) as told:
        ModelConfig.from_dict(raw)
    assert told.value.field == field
    config = ModelConfig.from_dict(raw, ignore_fields=[field])
    assert config.ledger.overruled == (field,)
    assert config == ModelConfig.from_dict(llama())


def test_fields_to_ignore_are_named_with_their_block(llama: Any) -> None:
    block = {"rope_type": "linear", "factor": 2.0, "note": "x"}
    with pytest.raises(ConfigError, match="rope_scaling.note: 'x' has no meaning"):
        ModelConfig.from_dict(llama(rope_scaling=block))
    config = ModelConfig.from_dict(llama(rope_scaling=block), ignore_fields=["rope_scaling.note"])
    assert config.rope is not None and config.rope.factor == 2.0
    for absent in ("no_such_field", "rope_scaling.other", "vocab_size.x"):
        with pytest.raises(ConfigError, match=f"{absent}: asked to be ignored, but the file"):
            ModelConfig.from_dict(llama(rope_scaling=block), ignore_fields=[absent])


def test_a_strict_family_refuses_what_nobody_knows(llama: Any) -> None:
    strict = LLAMA_LIKE.extend("strict", strict=True)
    raw = llama(acme_dial=True, acme_off=False, acme_none=None)
    with pytest.raises(ConfigError, match="acme_dial: True is not known to strict"):
        ModelConfig.from_dict(raw, strict)
    ledger = ModelConfig.from_dict(raw, strict, ignore_fields=["acme_dial"]).ledger
    assert (ledger.unknown, ledger.overruled) == (("acme_off",), ("acme_dial",))


def test_dtype_auto_states_none(llama: Any) -> None:
    assert ModelConfig.from_dict(llama(torch_dtype="auto")).dtype is None
