"""Layers of other shapes, declared by a plugin, beside what transformers' modules compute."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archzoo
from archzoo.errors import BoundaryError
from tiny import ids_of, tiny_llama

PROMPTS = [ids_of(9), ids_of(1), ids_of(4, seed=3)]
Part = Callable[[Tensor], Tensor]


def post_norm(x: Tensor, attn: Part, mlp: Part, one: Part, two: Part) -> Tensor:
    x = x + two(attn(x))
    return x + one(mlp(x))


def sandwich(x: Tensor, attn: Part, mlp: Part, one: Part, two: Part) -> Tensor:
    x = x + two(attn(one(x)))
    return x + one(mlp(two(x)))


def parallel(x: Tensor, attn: Part, mlp: Part, one: Part, two: Part) -> Tensor:
    return x + attn(one(x)) + mlp(one(x))


def two_norms(x: Tensor, attn: Part, mlp: Part, one: Part, two: Part) -> Tensor:
    return x + attn(one(x)) + mlp(two(x))


def pre_norm(x: Tensor, attn: Part, mlp: Part, one: Part, two: Part) -> Tensor:
    x = x + attn(one(x))
    return x + mlp(two(x))


SHAPES = {
    "PostNormForCausalLM": post_norm,
    "SandwichForCausalLM": sandwich,
    "ParallelForCausalLM": parallel,
    "TwoNormParallelForCausalLM": two_norms,
    "OwnResidualForCausalLM": pre_norm,
    "TpAttentionForCausalLM": pre_norm,
}
TOPOLOGIES: list[dict[str, Any]] = [
    {},
    {"tp": 2},
    {"tp": 4, "plan": "naive"},
    {"tp": 2, "attn_dp": 2},
    {"tp": 4, "attn_dp": 2, "pp": 2},
    {"tp": 4, "attn_dp": 4, "dp_lm_head": True},
]


def oracle(model: Any, ids: list[int], shape: Callable[..., Tensor]) -> Tensor:
    """Logits by transformers' attention, MLP and norms, put together as the shape says."""
    inner = model.model
    x = inner.embed_tokens(torch.tensor([ids]))
    turns = inner.rotary_emb(x, torch.arange(len(ids))[None])
    for layer in inner.layers:

        def attn(rows: Tensor, layer: Any = layer) -> Tensor:
            out: Tensor = layer.self_attn(rows, position_embeddings=turns, attention_mask=None)[0]
            return out

        x = shape(x, attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm)
    logits: Tensor = model.lm_head(inner.norm(x))[0]
    return logits


def write(path: Path, architecture: str) -> Any:
    """A checkpoint for an architecture of layer_shapes; the model its weights come from."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 3}
    _, model = tiny_llama(path, attn_implementation="sdpa", **sizes)
    file = path / "config.json"
    config = {**json.loads(file.read_text()), "architectures": [architecture]}
    file.write_text(json.dumps(config))
    return copy.deepcopy(model).double()


@pytest.fixture(autouse=True)
def _as_external_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_EXTERNAL_MODEL_PACKAGE", "models.layer_shapes")


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("architecture", SHAPES)
def test_shape_on_every_topology(
    tmp_path: Path, architecture: str, topology: dict[str, Any]
) -> None:
    reference = write(tmp_path, architecture)
    options = {"dtype": torch.float64, "kv_slots": 256}
    if architecture.startswith("TpAttention") and topology.get("attn_dp", 1) > 1:
        with pytest.raises(BoundaryError, match="partial over tp.*the stage declares attn_tp"):
            archzoo.load(tmp_path, **options, **topology)
        return
    model, single = (archzoo.load(tmp_path, **options, **sizes) for sizes in (topology, {}))
    with torch.no_grad():
        wanted = [oracle(reference, ids, SHAPES[architecture]) for ids in PROMPTS]
    for chunk in (None, 4):
        got = model.logits(PROMPTS, chunk_size=chunk)
        for one, other, want in zip(got, single.logits(PROMPTS), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
            torch.testing.assert_close(one, want, rtol=0, atol=1e-4)  # its norms are float32
    results = [each.generate(PROMPTS, 3, ignore_eos=True) for each in (model, single)]
    assert [r.token_ids for r in results[0]] == [r.token_ids for r in results[1]]
