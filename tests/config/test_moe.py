from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig, MoEConfig
from archzoo.errors import ConfigError

FAMILY = LLAMA_LIKE.extend("sparse", experts=True, defaults={"mlp_only_layers": ()})
RAW: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}


def read(**changes: Any) -> ModelConfig:
    raw = {name: value for name, value in {**RAW, **changes}.items() if value != "absent"}
    return ModelConfig.from_dict(raw, FAMILY, "config.json")


def sparse_layers(**changes: Any) -> list[int]:
    config = read(**changes)
    return [at for at in range(config.num_hidden_layers) if config.is_sparse(at)]


def test_experts_are_read() -> None:
    assert read().moe == MoEConfig(8, 2, 24, True, (True,) * 6)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"decoder_sparse_step": 4}, [3]),
        ({"decoder_sparse_step": 7}, []),
        ({"mlp_only_layers": [0, 5]}, [1, 2, 3, 4]),
        ({"mlp_only_layers": [1, 99], "decoder_sparse_step": 2}, [3, 5]),
        ({"mlp_only_layers": None}, [0, 1, 2, 3, 4, 5]),
        ({"mlp_only_layers": [-1]}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers: list[int]) -> None:
    assert sparse_layers(**changes) == layers


def test_a_family_with_experts_may_have_a_model_without() -> None:
    assert read(num_experts=0).moe is None and not read(num_experts=0).is_sparse(0)
    dense = ModelConfig.from_dict(RAW, LLAMA_LIKE)
    assert dense.moe is None and not dense.is_sparse(5)
    with pytest.raises(ConfigError, match="layer 6 asked for"):
        read().is_sparse(6)


def test_both_names_of_the_number_of_experts() -> None:
    moe = read(num_experts="absent", num_local_experts=4).moe
    assert moe is not None and moe.num_experts == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts": "absent"}, "num_experts or num_local_experts"),
        ({"num_experts": -1}, "num_experts"),
        ({"num_experts": 4097}, "expected 0 to 4096"),
        ({"moe_intermediate_size": 2**22 + 1}, "expected 1 to 4194304"),
        ({"num_experts": True}, "num_experts"),
        ({"num_experts_per_tok": 9}, r"9 of num_experts=8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"moe_intermediate_size": "24"}, "moe_intermediate_size"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": 3}, "not a list of layer numbers"),
        ({"mlp_only_layers": [1, "2"]}, r"mlp_only_layers\[1\]"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(**changes)


def test_training_fields_of_the_router_are_ignored_by_rule() -> None:
    config = read(router_aux_loss_coef=0.001, output_router_logits=False)
    ignored = config.ledger.ignored
    assert ignored["router_aux_loss_coef"] == "training only"
    assert ignored["output_router_logits"] == "run-time choice"
    assert {"num_experts", "moe_intermediate_size", "norm_topk_prob"} <= set(config.ledger.consumed)
