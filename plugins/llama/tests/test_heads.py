"""Vectors and scores over Llama backbones against transformers, prompt by prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import LlamaForSequenceClassification as Reference
from transformers import LlamaModel as ReferenceBackbone

import archzoo
from archzoo.errors import ConfigError, CoverageError, InputError
from archzoo_llama.heads import (
    LlamaForSequenceClassification,
    LlamaForSequenceClassificationWithNormal_Weights,
)
from archzoo_llama.model import LlamaModel
from tiny import SIZES, ids_of, randomise, save

ATOL = 1e-5
PAD = 9
PROMPTS = [ids_of(11), ids_of(1), [4, PAD, 7, PAD, 3], [5, 6, PAD], [PAD], ids_of(40), ids_of(2)]
"""Of very different lengths; the pad token inside a text, at its end, and alone."""


def reference_of(labels: int, **changes: Any) -> Reference:
    config = LlamaConfig(**{**SIZES, "pad_token_id": PAD, **changes}, num_labels=labels)
    model = Reference(config).eval()
    randomise(model, seed=labels)
    return model


def last_rows(backbone: ReferenceBackbone, prompts: list[list[int]]) -> Tensor:
    with torch.no_grad():
        rows = [backbone(torch.tensor([ids])).last_hidden_state[0, -1] for ids in prompts]
    return torch.stack(rows)


def scores_of(model: Reference, prompts: list[list[int]]) -> Tensor:
    """What transformers gives a prompt alone; told of no pad token, it scores the last row."""
    pad, model.config.pad_token_id = model.config.pad_token_id, None
    with torch.no_grad():
        scores = [model(torch.tensor([ids])).logits[0] for ids in prompts]
    model.config.pad_token_id = pad
    return torch.stack(scores)


@pytest.fixture(scope="module", params=[1, 2, 5])
def classifier(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Reference]:
    model = reference_of(request.param)
    return save(model, tmp_path_factory.mktemp(f"labels{request.param}")), model


@pytest.mark.parametrize("tp", [1, 3])
def test_scores_equal_transformers(classifier: tuple[Path, Reference], tp: int) -> None:
    path, reference = classifier
    model = archzoo.load(path, dtype=torch.float32, tp=tp)
    assert type(model.module) is LlamaForSequenceClassification
    want = scores_of(reference, PROMPTS)
    got = model.classify(PROMPTS)
    assert got.dtype is torch.float32 and not got.is_inference()
    torch.testing.assert_close(got, want, rtol=0, atol=ATOL)
    for chunk in (1, 4, 64):
        torch.testing.assert_close(
            model.classify(PROMPTS, chunk_size=chunk), want, rtol=0, atol=ATOL
        )
    alone = torch.cat([model.classify(ids) for ids in PROMPTS])
    torch.testing.assert_close(alone, want, rtol=0, atol=ATOL)


def test_padding_of_transformers_makes_no_difference(classifier: tuple[Path, Reference]) -> None:
    """A right-padded batch without pad tokens in its texts, as transformers would run it."""
    path, reference = classifier
    prompts = [ids for ids in PROMPTS if PAD not in ids]
    assert len(prompts) == 3
    width = max(map(len, prompts))
    padded = torch.tensor([ids + [PAD] * (width - len(ids)) for ids in prompts])
    with torch.no_grad():
        want = reference(padded, attention_mask=(padded != PAD).long()).logits
    got = archzoo.load(path, dtype=torch.float32).classify(prompts)
    torch.testing.assert_close(got, want, rtol=0, atol=ATOL)


def test_two_ranks_hold_the_whole_head(tmp_path: Path) -> None:
    reference = reference_of(3, num_key_value_heads=6)
    save(reference, tmp_path)
    model = archzoo.load(tmp_path, dtype=torch.float32, tp=2)
    for runner in model.engine.runners:
        assert runner.module.score.weight.shape == (3, 48)
    want = scores_of(reference, PROMPTS)
    torch.testing.assert_close(model.classify(PROMPTS), want, rtol=0, atol=ATOL)


def test_a_stored_lm_head_is_skipped_by_a_named_rule(classifier: tuple[Path, Reference]) -> None:
    path, reference = classifier
    tensors = load_file(path / "model.safetensors")
    extra = {**tensors, "lm_head.weight": torch.full((130, 48), torch.nan)}
    other = path.with_name(path.name + "-lm")
    other.mkdir()
    save_file(extra, other / "model.safetensors")
    (other / "config.json").write_text((path / "config.json").read_text())
    model = archzoo.load(other, dtype=torch.float32)
    assert model.report.skipped == {"head of a classifier": ("lm_head.weight",)}
    want = scores_of(reference, PROMPTS[:1])
    torch.testing.assert_close(model.classify(PROMPTS[0]), want, rtol=0, atol=ATOL)


@pytest.mark.parametrize("change", ["missing", "bias", "labels"])
def test_every_weight_of_the_head_is_accounted_for(
    classifier: tuple[Path, Reference], change: str, tmp_path: Path
) -> None:
    path, reference = classifier
    tensors = load_file(path / "model.safetensors")
    raw = json.loads((path / "config.json").read_text())
    if change == "missing":
        del tensors["score.weight"]
    elif change == "bias":
        tensors["score.bias"] = torch.ones(reference.num_labels)
    else:
        raw |= {"num_labels": 7, "id2label": None}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    kind = ConfigError if change == "labels" else CoverageError
    with pytest.raises(kind, match="score"):
        archzoo.load(tmp_path, dtype=torch.float32)


def test_a_classifier_names_what_it_does_not_answer(classifier: tuple[Path, Reference]) -> None:
    model = archzoo.load(classifier[0], dtype=torch.float32)
    calls = {
        "logits": model.logits,
        "logprobs": model.logprobs,
        "generate": model.generate,
        "embed": model.embed,
    }
    for name, call in calls.items():
        pattern = rf"LlamaForSequenceClassification is a classifier.*classify\(\), not {name}\(\)"
        with pytest.raises(InputError, match=pattern):
            call([3, 4])
    assert model.engine.free_slots == model.engine.limits.pool.slots
    assert model.engine.step() == [], "a refused request was left behind"


def test_prompts_that_cannot_be_scored(classifier: tuple[Path, Reference]) -> None:
    path, reference = classifier
    model = archzoo.load(path, dtype=torch.float32)
    assert model.classify([]).shape == (0, reference.num_labels)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        model.classify([[3], []])
    with pytest.raises(InputError, match="130"):
        model.classify([[130]])
    with pytest.raises(InputError, match="tokenizer"):
        model.classify("a text")
    with pytest.raises(InputError, match="chunk_size"):
        model.classify([3, 4], chunk_size=0)


@pytest.mark.parametrize("kind", ["Mistral", "Phi3"])
def test_a_headless_checkpoint_is_its_familys_backbone(kind: str, tmp_path: Path) -> None:
    """As E5-Mistral is published; the window is that of the family."""
    backbone: Any = getattr(transformers, f"{kind}Model")
    sizes = {**SIZES, "sliding_window": 4, "pad_token_id": 0}
    reference = backbone(backbone.config_class(**sizes)).eval()
    randomise(reference)
    path = save(reference, tmp_path)
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "architectures": [f"{kind}ForCausalLM"]}))
    with torch.no_grad():
        want = reference(torch.tensor([PROMPTS[0]]))[0][0, -1]
    model = archzoo.load(path, dtype=torch.float32)
    assert type(model.module).__name__ == f"{kind}Model"
    got = model.embed([PROMPTS[0]], normalize=False)[0]
    torch.testing.assert_close(got, want, rtol=0, atol=ATOL)


# ----------------------------------------------------------------------------------- rewards


class AttributeHead(nn.Module):
    """The public definition of the weighted reward head, in plain torch."""

    def __init__(self, width: int, attributes: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(width, width),
            nn.SELU(),
            nn.Linear(width, width),
            nn.SELU(),
            nn.Linear(width, attributes),
        )


def test_the_weighted_reward_head(tmp_path: Path) -> None:
    attributes = 5
    backbone = reference_of(2 * attributes)
    head = AttributeHead(48, attributes).eval()
    randomise(head)
    tensors = dict(backbone.state_dict())
    tensors |= {f"weights.{name}": value for name, value in head.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    name = "LlamaForSequenceClassificationWithNormal_Weights"
    raw = {**backbone.config.to_dict(), "architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with torch.no_grad():
        means = scores_of(backbone, PROMPTS).view(-1, attributes, 2)[:, :, 0]
        want = (means * head.fc(last_rows(backbone.model, PROMPTS))).sum(-1, keepdim=True)
    for tp in (1, 3):
        model = archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
        assert type(model.module) is LlamaForSequenceClassificationWithNormal_Weights
        got = model.classify(PROMPTS, chunk_size=8)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=ATOL)
        assert model.classify([]).shape == (0, 1)


def test_a_mean_without_a_spread_is_refused(tmp_path: Path) -> None:
    save(reference_of(3), tmp_path)
    file = tmp_path / "config.json"
    name = "LlamaForSequenceClassificationWithNormal_Weights"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [name]}))
    with pytest.raises(ConfigError, match="num_labels: 3 is odd"):
        archzoo.load(tmp_path, dtype=torch.float32)


# ----------------------------------------------------------------------------------- vectors


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReferenceBackbone]:
    reference = ReferenceBackbone(LlamaConfig(**{**SIZES, "pad_token_id": PAD})).eval()
    randomise(reference)
    return save(reference, tmp_path_factory.mktemp("backbone")), reference


def unit(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows, dim=-1)


@pytest.mark.parametrize("tp", [1, 3])
def test_vectors_equal_transformers(backbone: tuple[Path, ReferenceBackbone], tp: int) -> None:
    path, reference = backbone
    model = archzoo.load(path, dtype=torch.float32, tp=tp)
    assert type(model.module) is LlamaModel
    rows = last_rows(reference, PROMPTS)
    for chunk in (None, 1, 4):
        got = model.embed(PROMPTS, chunk_size=chunk)
        torch.testing.assert_close(got, unit(rows), rtol=0, atol=ATOL)
        cut = model.embed(PROMPTS, dimensions=16, chunk_size=chunk)
        torch.testing.assert_close(cut, unit(rows[:, :16]), rtol=0, atol=ATOL)
    plain = model.embed(PROMPTS, dimensions=16, normalize=False)
    torch.testing.assert_close(plain, rows[:, :16], rtol=0, atol=ATOL)


def test_a_language_model_embeds_and_does_not_classify(tmp_path: Path) -> None:
    reference = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    randomise(reference)
    model = archzoo.load(save(reference, tmp_path), dtype=torch.float32)
    want = unit(last_rows(reference.model, PROMPTS))
    torch.testing.assert_close(model.embed(PROMPTS), want, rtol=0, atol=ATOL)
    with pytest.raises(InputError, match=r"LlamaForCausalLM.*without a classification head.*not c"):
        model.classify([3, 4])


def test_an_embedding_model_names_its_only_answer(
    backbone: tuple[Path, ReferenceBackbone],
) -> None:
    model = archzoo.load(backbone[0], dtype=torch.float32)
    for call in (model.logits, model.logprobs, model.generate, model.classify):
        with pytest.raises(InputError, match=r"LlamaModel.*without a head; it answers embed\(\)"):
            call([3, 4])
