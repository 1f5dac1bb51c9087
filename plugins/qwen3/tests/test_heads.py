"""Vectors, relevance and rewards over Qwen backbones against transformers and plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)
from transformers import Qwen2ForSequenceClassification as ReferenceQwen2
from transformers import Qwen3ForSequenceClassification as ReferenceQwen3

import archzoo
from archzoo.errors import CoverageError, InputError
from archzoo_qwen3 import heads, model
from tiny import SIZES, ids_of, randomise, reference_logits, save

ATOL = 1e-5
PAD, STEP = 9, 7
BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
COMMON: dict[str, Any] = {**SIZES, **BASE, "pad_token_id": PAD, "vocab_size": 130}
NARROW = {**COMMON, "head_dim": 6}
PROMPTS = [ids_of(11), ids_of(1), [4, PAD, 7, PAD, 3], [5, 6, PAD], [PAD], ids_of(23)]
"""The pad token inside a text, at its end, and alone."""
TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 6, "attn_dp": 2, "pp": 2, "pp_layers": (2, 1)},
)


def made(kind: type[PreTrainedModel], config: Any) -> Any:
    reference = kind(config).eval()
    randomise(reference, seed=5)
    return reference


def load(path: Path, **options: Any) -> archzoo.Model:
    return archzoo.load(path, dtype=torch.float32, kv_slots=128, **options)


def restate(path: Path, **changes: Any) -> Path:
    """Change the config beside a checkpoint."""
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return path


def last_rows(backbone: PreTrainedModel, prompts: list[list[int]]) -> Tensor:
    with torch.no_grad():
        return torch.stack([backbone(torch.tensor([ids]))[0][0, -1] for ids in prompts])


def equal(got: Tensor, want: Tensor) -> None:
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=ATOL)


# ----------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("options", TOPOLOGIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [Qwen2Model, Qwen3Model])
def test_a_backbone_saved_under_the_name_of_its_language_model(
    kind: Any, tied: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    """As Qwen3-Embedding is published: names without model., and no head, tied or not."""
    sizes = NARROW if kind is Qwen3Model else COMMON
    reference = made(kind, kind.config_class(**sizes, tie_word_embeddings=tied))
    name = kind.__name__.replace("Model", "ForCausalLM")
    loaded = load(restate(save(reference, tmp_path), architectures=[name]), **options)
    rows = last_rows(reference, PROMPTS)
    for chunk in (None, 10):
        equal(loaded.embed(PROMPTS, chunk_size=chunk), F.normalize(rows, dim=-1))
        cut = loaded.embed(PROMPTS, dimensions=16, chunk_size=chunk)
        equal(cut, F.normalize(rows[:, :16], dim=-1))
    equal(loaded.embed(PROMPTS, normalize=False), rows)
    assert loaded.embed([]).shape == (0, 48)
    if not tied:
        with pytest.raises(InputError, match=rf"{kind.__name__} is an embedding model without a h"):
            loaded.logits([3, 4])


def test_only_a_backbone_may_lack_its_head(tmp_path: Path) -> None:
    reference = made(Qwen3ForCausalLM, Qwen3Config(**NARROW))
    tensors = load_file(save(reference, tmp_path) / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CoverageError, match=r"lm_head\.weight"):
        load(tmp_path)
    loaded = load(restate(tmp_path, architectures=["Qwen3Model"]))
    equal(loaded.embed(PROMPTS), F.normalize(last_rows(reference.model, PROMPTS), dim=-1))


# ------------------------------------------------------------------------- classes and rewards


@pytest.mark.parametrize("options", TOPOLOGIES)
@pytest.mark.parametrize(
    ("kind", "sizes"), [(ReferenceQwen2, COMMON), (ReferenceQwen3, NARROW)], ids=["qwen2", "qwen3"]
)
@pytest.mark.parametrize("labels", [1, 3])
def test_scores_equal_transformers(
    kind: Any, sizes: Any, labels: int, options: dict[str, Any], tmp_path: Path
) -> None:
    reference = made(kind, kind.config_class(**sizes, num_labels=labels))
    loaded = load(save(reference, tmp_path), **options)
    with torch.no_grad():
        want = reference.score(last_rows(reference.model, PROMPTS))
    equal(loaded.classify(PROMPTS), want)
    equal(loaded.classify(PROMPTS, chunk_size=10), want)
    assert loaded.classify([]).shape == (0, labels)


def reward_checkpoint(path: Path, name: str, labels: int) -> tuple[Qwen2Model, nn.Sequential]:
    """A backbone and the public definition of the reward head, in plain torch."""
    backbone = made(Qwen2Model, Qwen2Config(**COMMON))
    head = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, labels)).eval()
    randomise(head)
    with torch.no_grad():
        head[2].weight *= 4
    tensors = {f"model.{key}": value for key, value in backbone.state_dict().items()}
    tensors |= {f"score.{key}": value for key, value in head.state_dict().items()}
    tensors["lm_head.weight"] = torch.full((130, 48), torch.nan)  # the RM's file has one
    save_file(tensors, path / "model.safetensors")
    raw = {**backbone.config.to_dict(), "architectures": [name], "id2label": {"0": "LABEL_0"}}
    (path / "config.json").write_text(json.dumps(raw))
    return backbone, head


@pytest.mark.parametrize("options", TOPOLOGIES)
def test_a_reward_is_what_two_layers_make_of_the_last_row(
    options: dict[str, Any], tmp_path: Path
) -> None:
    backbone, head = reward_checkpoint(tmp_path, "Qwen2ForRewardModel", 1)
    loaded = load(tmp_path, **options)
    assert type(loaded.module) is heads.Qwen2ForRewardModel
    with torch.no_grad():
        want = head(last_rows(backbone, PROMPTS))
    assert want.abs().max() > 1, "no squashed score could equal it"
    equal(loaded.classify(PROMPTS), want)
    equal(loaded.classify(PROMPTS, chunk_size=10), want)
    out = dict(loaded.export_weights())
    assert torch.equal(out["score.2.bias"], head[2].bias)
    with pytest.raises(InputError, match="names no token that ends a step"):
        loaded.step_scores([3, 4])


@pytest.mark.parametrize("options", TOPOLOGIES)
def test_a_process_reward_scores_every_step(options: dict[str, Any], tmp_path: Path) -> None:
    backbone, head = reward_checkpoint(tmp_path, "Qwen2ForProcessRewardModel", 2)
    loaded = load(tmp_path, **options)
    prompts = [[3, STEP, STEP, 5, 6, STEP], [4, 5, STEP, 8, 8], [STEP], [3, 4]]
    got = loaded.step_scores(prompts, STEP)
    for ids, scores in zip(prompts, got, strict=True):
        with torch.no_grad():
            rows = head(backbone(torch.tensor([ids]))[0][0])
        equal(scores, rows[torch.tensor(ids) == STEP])
    assert [len(scores) for scores in got] == [3, 1, 1, 0]
    assert got[3].shape == (0, 2)
    assert loaded.step_scores([], STEP) == []
    assert loaded.engine.free_slots == loaded.engine.limits.pool.slots
    with pytest.raises(InputError, match="prompt 1 is empty"):
        loaded.step_scores([[3], []], STEP)
    with pytest.raises(InputError, match="tokenizer"):
        loaded.step_scores([3, STEP])  # its own step token is a text
    with pytest.raises(InputError, match="step_token=130"):
        loaded.step_scores([3, STEP], 130)


@pytest.mark.parametrize("lost", ["score.0.bias", "score.2.weight", "model.layers.1.mlp"])
def test_a_reward_model_without_all_of_its_weights_is_refused(lost: str, tmp_path: Path) -> None:
    reward_checkpoint(tmp_path, "Qwen2ForRewardModel", 1)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith(lost)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(CoverageError, match=lost.replace("mlp", "mlp.down_proj")):
        load(tmp_path)


# ---------------------------------------------------------------------------------- relevance

WORDS = [*"abcdefghijklmnopqrstuvwxyz", "yes", "no", "?", "maybe"]
YES, NO = 26, 27


def with_tokenizer(path: Path) -> Path:
    """A word tokenizer: whatever is not a word of WORDS is '?'."""
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    backend = Backend(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?").save_pretrained(path)
    return path


DOCUMENTS = ["a b c", "", "{query} {nonsense} x y", "z " * 9]


def texts(instruction: str) -> list[str]:
    """The model card's prompt, written out."""
    return [
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: q r\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        for document in DOCUMENTS
    ]


def odds_of_yes(reference: PreTrainedModel, prompts: list[list[int]]) -> Tensor:
    last = torch.stack([reference_logits(reference, ids)[-1] for ids in prompts])
    return last[:, [NO, YES]].log_softmax(-1)[:, 1].exp()


@pytest.mark.parametrize("options", TOPOLOGIES)
def test_a_reranker_weighs_yes_against_no(options: dict[str, Any], tmp_path: Path) -> None:
    reference = made(Qwen3ForCausalLM, Qwen3Config(**NARROW))
    loaded = load(with_tokenizer(save(reference, tmp_path)), **options)
    card = "Given a web search query, retrieve relevant passages that answer the query"
    for instruction in (None, "a maybe"):
        prompts = [list(loaded.encode(text)) for text in texts(instruction or card)]
        assert len({len(ids) for ids in prompts}) == 4
        want = odds_of_yes(reference, prompts)
        for chunk in (None, 20):
            got = loaded.rerank("q r", DOCUMENTS, instruction=instruction, chunk_size=chunk)
            equal(got, want)
    labelled = loaded.classify(PROMPTS, label_tokens=(YES, "no", 3), chunk_size=10)
    want = torch.stack([reference_logits(reference, ids)[-1, [YES, NO, 3]] for ids in PROMPTS])
    torch.testing.assert_close(labelled, want, rtol=0, atol=2e-4)
    assert loaded.classify([], label_tokens=(1, 2)).shape == (0, 2)
    assert loaded.rerank("q", []).shape == (0,)
    other = loaded.rerank("q r", DOCUMENTS, labels=("maybe", NO))
    assert not torch.allclose(other, loaded.rerank("q r", DOCUMENTS), atol=1e-3)


def test_a_reranker_stored_with_one_row_says_the_same(tmp_path: Path) -> None:
    """``Qwen3ForSequenceClassification`` whose score is the difference of two rows of the head."""
    reference = made(Qwen3ForCausalLM, Qwen3Config(**NARROW))
    first, second = tmp_path / "yes-no", tmp_path / "one-row"
    language_model = load(with_tokenizer(save(reference, first)))
    tensors = load_file(first / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    tensors["score.weight"] = (head[YES] - head[NO])[None]
    second.mkdir()
    save_file(tensors, second / "model.safetensors")
    raw = json.loads((first / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(raw))
    restate(second, architectures=["Qwen3ForSequenceClassification"], num_labels=1)
    one_row = load(with_tokenizer(second))
    want = language_model.rerank("q r", DOCUMENTS)
    equal(one_row.rerank("q r", DOCUMENTS), want)
    equal(
        one_row.classify(texts("a"))[:, 0].sigmoid(),
        language_model.rerank("q r", DOCUMENTS, instruction="a"),
    )
    with pytest.raises(InputError, match="needs one row and no labels"):
        one_row.rerank("q", DOCUMENTS, labels=("yes", "no"))


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    reference = made(Qwen3ForCausalLM, Qwen3Config(**NARROW))
    loaded = load(with_tokenizer(save(reference, tmp_path)))
    with pytest.raises(InputError, match="list of texts"):
        loaded.rerank("q", "one document")
    with pytest.raises(InputError, match="list of texts"):
        loaded.rerank("q", [[3, 4]])  # type: ignore[list-item]  # what is refused
    with pytest.raises(InputError, match="'yes no' is 2 tokens"):
        loaded.rerank("q", ["a"], labels=("yes no", "no"))
    with pytest.raises(InputError, match="must be two tokens"):
        loaded.rerank("q", ["a"], labels=("yes",))  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InputError, match="label_tokens='yes' is no list"):
        loaded.classify([3], label_tokens="yes")
    with pytest.raises(InputError, match="label_tokens=130"):
        loaded.classify([3], label_tokens=(130,))
    with pytest.raises(InputError, match="prompt 0 is empty"):
        loaded.classify([[]], label_tokens=(1,))
    with pytest.raises(InputError, match="without a classification head"):
        loaded.classify([3, 4])
    with pytest.raises(InputError, match="without a classification head"):
        loaded.step_scores([3, 4], 3)
    backbone = load(restate(tmp_path, architectures=["Qwen3Model"]))
    assert type(backbone.module) is model.Qwen3Model
    with pytest.raises(InputError, match="Qwen3Model knows no prompt for reranking"):
        backbone.rerank("q", ["a"])
