"""Qwen2 and Qwen3 against transformers, in float32, over topologies, chunks, batches and decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.topologies import PLANS
from torch import Tensor
from transformers import PreTrainedModel
from transformers import Qwen2ForCausalLM as ReferenceQwen2
from transformers import Qwen3ForCausalLM as ReferenceQwen3

import archzoo
from archzoo.config import ModelConfig
from archzoo.context import BuildContext
from archzoo.models import DecoderBase, DecoderLayer
from archzoo.parallel import Topology
from archzoo_qwen3 import heads, model
from tiny import SIZES, ids_of, randomise, reference_logits, save

ATOL = 2e-4
LAYERS, VOCAB = 5, 131
COMMON: dict[str, Any] = {
    **SIZES, "vocab_size": VOCAB, "num_hidden_layers": LAYERS, "hidden_size": 32,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
SLIDING = {"use_sliding_window": True, "sliding_window": 4}
KINDS = [
    "sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"
]  # fmt: skip
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2": (ReferenceQwen2, {**BASE, **SLIDING, "max_window_layers": 2}),
    "qwen3": (ReferenceQwen3, {**BASE, **SLIDING, "head_dim": 12, "layer_types": KINDS}),
    "tied": (ReferenceQwen3, {**BASE, "head_dim": 6, "tie_word_embeddings": True}),
    "biases": (ReferenceQwen3, {"head_dim": 8, "attention_bias": True}),
}
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "alone": {},
    "more ranks than KV heads": {"tp": 8},
    "uneven stages": {"tp": 2, "pp": 3, "pp_layers": (1, 3, 1), "pp_micro_batches": 2},
    "attention groups": {"tp": 4, "attn_dp": 2, **PLANS["sliced"]},
    "all of them": {"tp": 8, "attn_dp": 2, "pp": 2, "pp_layers": (4, 1), "dp_lm_head": True},
}
SWEEP = [
    *product(("qwen2", "qwen3"), TOPOLOGIES),
    *product(("tied",), ("alone", "uneven stages", "all of them")),
    ("biases", "more ranks than KV heads"),
]
PROMPTS = [ids_of(11, VOCAB), ids_of(1, VOCAB), ids_of(6, VOCAB, seed=2)]

Checkpoint = tuple[Path, PreTrainedModel]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Each variant on disk and the model that wrote it; written when first asked for."""

    @cache
    def written(variant: str) -> Checkpoint:
        kind, changes = VARIANTS[variant]
        reference = kind(kind.config_class(**{**COMMON, **changes})).eval()
        randomise(reference, seed=len(variant))
        return save(reference, tmp_path_factory.mktemp(variant)), reference

    return written


def close(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("variant", "topology"), SWEEP)
def test_logits_chunks_and_decode_equal_transformers(
    checkpoint: Callable[[str], Checkpoint], variant: str, topology: str
) -> None:
    path, reference = checkpoint(variant)
    loaded = archzoo.load(path, dtype=torch.float32, kv_slots=128, **TOPOLOGIES[topology])
    want = [reference_logits(reference, ids) for ids in PROMPTS]
    close(loaded.logits(PROMPTS), want)
    close(loaded.logits(PROMPTS, chunk_size=4), want)
    results = loaded.generate(PROMPTS, max_new_tokens=4, ignore_eos=True)
    for ids, result in zip(PROMPTS, results, strict=True):
        rows = reference_logits(reference, [*ids, *result.token_ids[:-1]])[-4:]
        assert result.token_ids == rows.argmax(-1).tolist()


def test_a_batch_says_what_each_prompt_says_alone(checkpoint: Callable[[str], Checkpoint]) -> None:
    loaded = archzoo.load(checkpoint("qwen3")[0], dtype=torch.float32, kv_slots=128)
    together = loaded.logits([PROMPTS[0], [], *PROMPTS[1:]])
    assert together.pop(1).shape == (0, VOCAB)
    close(together, [loaded.logits(ids) for ids in PROMPTS])
    assert loaded.logits([]).shape == (0, VOCAB)


@pytest.mark.parametrize(
    ("variant", "topology"),
    [("qwen2", "alone"), ("qwen3", "all of them"), ("tied", "uneven stages")],
)
def test_weights_go_out_as_they_came_and_may_be_replaced(
    checkpoint: Callable[[str], Checkpoint], variant: str, topology: str
) -> None:
    path, reference = checkpoint(variant)
    loaded = archzoo.load(path, dtype=torch.float32, kv_slots=128, **TOPOLOGIES[topology])
    stored = {
        name: value
        for name, value in reference.state_dict().items()
        if name != "lm_head.weight" or not reference.config.tie_word_embeddings
    }
    out = dict(loaded.export_weights())
    assert out.keys() == stored.keys()
    for name, value in stored.items():
        assert torch.equal(out[name], value), name
    other = type(reference)(reference.config).eval()
    randomise(other, seed=77)
    loaded.update_weights([(name, other.state_dict()[name]) for name in stored], mode="full")
    close(loaded.logits(PROMPTS), [reference_logits(other, ids) for ids in PROMPTS])


def test_queries_and_keys_are_normalised_by_head_before_they_are_rotated() -> None:
    """Against the definition, spelled out head by head; no rows give no rows."""
    config = ModelConfig.from_dict({**COMMON, "head_dim": 6}, model.QWEN3)
    ctx = BuildContext.of(Topology(), dtype=torch.float32, device=torch.device("cpu"))
    attention = model.Qwen3Attention(config, 0, ctx=ctx, prefix="model.layers.0.self_attn")
    randomise(attention)
    q, k = torch.randn(3, 48), torch.randn(3, 12)
    for got, rows, norm in zip(
        attention.normalize(q, k), (q, k), (attention.q_norm, attention.k_norm), strict=True
    ):
        for start in range(0, rows.shape[1], 6):
            head = rows[:, start : start + 6]
            size = head.pow(2).mean(-1, keepdim=True).add(config.rms_norm_eps).sqrt()
            torch.testing.assert_close(got[:, start : start + 6], head / size * norm.weight)
    assert [rows.shape for rows in attention.normalize(q[:0], k[:0])] == [(0, 48), (0, 12)]


def test_ranks_that_heads_cannot_be_dealt_to_are_refused(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    with pytest.raises(archzoo.errors.ShapeError, match="tp=3"):
        archzoo.load(checkpoint("qwen2")[0], dtype=torch.float32, tp=3)


def test_every_class_serves_its_own_layer() -> None:
    for kind in (model.Qwen3ForCausalLM, model.Qwen3Model, heads.Qwen3ForSequenceClassification):
        assert kind.layer is model.Qwen3DecoderLayer and kind.adapter.name == "qwen3"
    assert model.Qwen2ForCausalLM.layer is model.Qwen2Model.layer is DecoderLayer
    assert model.Qwen3ForCausalLM.backbone is model.Qwen3Model


def test_every_class_is_an_entry_point_and_resolves_to_itself() -> None:
    classes = {
        name: each
        for module in (model, heads)
        for name, each in vars(module).items()
        if name.startswith("Qwen") and isinstance(each, type) and issubclass(each, DecoderBase)
    }
    assert len(classes) == 8
    for name, expected in classes.items():
        assert archzoo.resolve(name) is expected
