"""Every architecture of this plugin against transformers, in float32, over topologies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)
from transformers import LlamaForCausalLM as ReferenceLlama
from transformers import LlamaModel as ReferenceBackbone
from transformers import MistralForCausalLM as ReferenceMistral

import archzoo
from archzoo.models import DecoderBase
from archzoo_llama import heads, model
from archzoo_llama.model import LlamaModel, MistralForCausalLM
from tiny import SIZES, ids_of, randomise, reference_logits, save

ATOL = 2e-4

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "attention-bias": {"attention_bias": True},
    "wide-heads": {"head_dim": 16},
    "narrow-heads": {"head_dim": 4},
    "tied": {"tie_word_embeddings": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "dynamic": {
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 16,
        }
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "rope_theta": 10000.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 16,
            "factor": 8.0,
            "short_factor": [1.0, 1.1, 1.2, 1.5],
            "long_factor": [1.0, 2.0, 4.0, 8.0],
        }
    },
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
    "eps": {"rms_norm_eps": 1e-2},
    "odd-vocabulary": {"vocab_size": 71},
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ReferenceLlama]:
    changes = VARIANTS[request.param]
    model = ReferenceLlama(LlamaConfig(**{**SIZES, **changes})).eval()
    randomise(model, seed=len(request.param))
    return save(model, tmp_path_factory.mktemp(request.param)), model


def ids_for(model: PreTrainedModel, count: int) -> list[int]:
    return ids_of(count, model.config.vocab_size)


@pytest.mark.parametrize("tp", [1, 2, 3, 6])
def test_logits_equal_transformers(variant: tuple[Path, ReferenceLlama], tp: int) -> None:
    path, reference = variant
    heads, kv = reference.config.num_attention_heads, reference.config.num_key_value_heads
    if heads % tp or (kv % tp and tp % kv):
        with pytest.raises(archzoo.errors.ShapeError, match=f"tp={tp}"):
            archzoo.load(path, dtype=torch.float32, tp=tp)
        return
    model = archzoo.load(path, dtype=torch.float32, tp=tp)
    for count in (1, 7, 33) if tp == 1 else (7,):
        ids = ids_for(reference, count)
        want = reference_logits(reference, ids)
        torch.testing.assert_close(model.logits(ids), want, rtol=0, atol=ATOL)


def test_chunks_and_batches_equal_the_whole(variant: tuple[Path, ReferenceLlama]) -> None:
    path, reference = variant
    model = archzoo.load(path, dtype=torch.float32)
    prompts = [ids_for(reference, count) for count in (13, 1, 21)]
    alone = [model.logits(ids) for ids in prompts]
    for ids, want in zip(prompts, alone, strict=True):
        for chunk in (1, 5):
            got = model.logits(ids, chunk_size=chunk)
            torch.testing.assert_close(got, want, rtol=0, atol=ATOL)
    for got, want in zip(model.logits(prompts), alone, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=ATOL)


def greedy(reference: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """Likeliest tokens, each from a whole forward: no cache of the reference's is involved."""
    sequence = list(ids)
    for _ in range(count):
        sequence.append(int(reference_logits(reference, sequence)[-1].argmax()))
    return sequence[len(ids) :]


@pytest.mark.parametrize("name", ["grouped", "llama3", "tied", "biases"])
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = ReferenceLlama(LlamaConfig(**{**SIZES, **VARIANTS[name]})).eval()
    randomise(reference)
    model = archzoo.load(save(reference, tmp_path), dtype=torch.float32)
    prompts = [ids_of(count) for count in (5, 2)]
    results = model.generate(prompts, max_new_tokens=12, ignore_eos=True)
    for ids, result in zip(prompts, results, strict=True):
        assert result.token_ids == greedy(reference, ids, 12)


@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("tp", [1, 3])
def test_mistral_slides_where_the_config_says(window: int | None, tp: int, tmp_path: Path) -> None:
    reference = ReferenceMistral(
        MistralConfig(**{**SIZES, "sliding_window": window, "head_dim": 8})
    ).eval()
    randomise(reference)
    model = archzoo.load(save(reference, tmp_path), dtype=torch.float32, tp=tp)
    assert type(model.module) is MistralForCausalLM
    ids = ids_of(40)
    want = reference_logits(reference, ids)
    torch.testing.assert_close(model.logits(ids), want, rtol=0, atol=ATOL)
    torch.testing.assert_close(model.logits(ids, chunk_size=7), want, rtol=0, atol=ATOL)
    assert model.generate(ids[:12], max_new_tokens=9, ignore_eos=True).token_ids == greedy(
        reference, ids[:12], 9
    )


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("prefixed", [False, True])
def test_the_backbone_embeds(tp: int, prefixed: bool, tmp_path: Path) -> None:
    """Saved alone (names without model.) or with a head that an embedding model leaves out."""
    config = LlamaConfig(**SIZES, architectures=["LlamaModel"])
    reference = ReferenceLlama(config).eval()
    randomise(reference)
    backbone: ReferenceBackbone = reference.model
    saved: PreTrainedModel = reference if prefixed else backbone
    save(saved, tmp_path)
    set_architecture(tmp_path, "LlamaModel")
    model = archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
    assert type(model.module) is LlamaModel
    prompts = [[*ids_of(5), 0], ids_of(1), ids_of(9)]
    want = torch.stack([last_hidden(backbone, ids) for ids in prompts])
    unit = torch.nn.functional.normalize(want, dim=-1)
    torch.testing.assert_close(model.embed(prompts), unit, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.embed(prompts, chunk_size=4), unit, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.embed(prompts, normalize=False), want, rtol=0, atol=ATOL)
    cut = torch.nn.functional.normalize(want[:, :16], dim=-1)
    torch.testing.assert_close(model.embed(prompts, dimensions=16), cut, rtol=0, atol=1e-5)
    with pytest.raises(archzoo.errors.InputError, match="without a head"):
        model.logits([3, 4])


def set_architecture(path: Path, name: str) -> None:
    import json

    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [name]}))


def last_hidden(backbone: ReferenceBackbone, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return backbone(torch.tensor([ids])).last_hidden_state[0, -1]


def test_every_class_is_an_entry_point_and_resolves_to_itself() -> None:
    classes = {
        name: each
        for module in (model, heads)
        for name, each in vars(module).items()
        if name.startswith(("Llama", "Mistral", "Phi3", "InternLM3", "IQuest"))
        and isinstance(each, type)
        and issubclass(each, DecoderBase)
    }
    assert len(classes) == 10
    for name, expected in classes.items():
        assert archzoo.resolve(name) is expected
