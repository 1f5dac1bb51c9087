"""Gated activations against transformers, by name, in float32, in MLPs and in experts."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.activations import ACT2CLS, ACT2FN

import archzoo
from archzoo.errors import ConfigError
from archzoo.layers.activation import ACTIVATIONS, SiluAndMul, get_act_and_mul
from archzoo.survey import preflight
from tiny import SIZES, ids_of, randomise, reference_logits, save, tiny_llama

NOT_SERVED = {"prelu", "xielu", "sqrtsoftplus"}


def test_silu_gates_the_second_half_by_the_first() -> None:
    x = torch.randn(3, 10)
    want = x[:, :5] * torch.sigmoid(x[:, :5]) * x[:, 5:]
    torch.testing.assert_close(SiluAndMul()(x), want)
    assert SiluAndMul()(x[:0]).shape == (0, 5)


@pytest.mark.parametrize("name", sorted(set(ACT2CLS) - NOT_SERVED))
def test_every_name_of_transformers_is_the_same_function(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 401), torch.randn(399)]).reshape(2, 400)
    gated = pickle.loads(pickle.dumps(get_act_and_mul(name)))
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(gated(x), ACT2FN[name](gate) * up, rtol=1e-6, atol=1e-5)
    assert not set(ACTIVATIONS) & NOT_SERVED


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "quick_gelu"])
def test_a_model_is_the_references(tmp_path: Path, act: str) -> None:
    path, reference = tiny_llama(tmp_path, hidden_act=act)
    ids = ids_of(9)
    got = archzoo.load(path, dtype="float32", tp=3 if act == "gelu" else 1).logits(ids)
    torch.testing.assert_close(got, reference_logits(reference, ids), rtol=0, atol=2e-4)


def test_experts_have_the_configs_activation(tmp_path: Path) -> None:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
    reference = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **sizes, hidden_act="gelu")).eval()
    randomise(reference)
    ids = ids_of(9)
    got = archzoo.load(save(reference, tmp_path), dtype="float32").logits(ids)
    torch.testing.assert_close(got, reference_logits(reference, ids), rtol=0, atol=2e-4)


def test_another_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"silu"', '"xielu"'))
    for call in (archzoo.load, preflight):
        with pytest.raises(ConfigError, match=r"hidden_act: 'xielu' is no activation.*gelu_new"):
            call(path)
