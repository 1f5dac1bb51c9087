"""Heads that are padded: ids that the tokenizer has not are never chosen, nor proposed."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import eagle3
import pytest
import torch
from runtime.drafts import PROMPTS, all_free, load, proposals, tokens
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import archzoo
from archzoo.errors import InputError
from archzoo.runtime.choosing import Choosable
from tiny import SIZES, tiny_llama

VOCAB = SIZES["vocab_size"]
NEW = 16
SAMPLED: dict[str, Any] = {"temperature": 1.5, "seed": 7}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "top_k": {**SAMPLED, "top_k": 9},
    "top_p": {**SAMPLED, "top_p": 0.8, "top_k": 140},
}


def write_tokenizer(path: Path, ids: Collection[int]) -> None:
    words = {f"w{token_id}": token_id for token_id in ids}
    inner = Tokenizer(models.WordLevel(words, next(iter(words))))
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(path)


def padded(source: Path, path: Path, size: int, ids: Collection[int] | None) -> Path:
    """A copy with a head of so many rows, whose new ones say what nobody else says so loudly."""
    path.mkdir()
    config = json.loads((source / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    weights = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = weights[name]
        loud = torch.cat([30 * rows[:5], -30 * rows[:5]]).repeat(4, 1)
        weights[name] = torch.cat([rows, loud[: size - len(rows)]])
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    if ids is not None:
        write_tokenizer(path, ids)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model whose head ends with the vocabulary, padded a little, and padded more."""
    folder = tmp_path_factory.mktemp("padded")
    plain, _ = tiny_llama(folder / "plain")
    every = range(VOCAB)
    padded(plain, folder / "little", VOCAB + 6, every)
    padded(plain, folder / "more", VOCAB + 14, every)
    padded(plain, folder / "unnamed", VOCAB + 14, None)
    padded(plain, folder / "other", VOCAB + 6, (*range(VOCAB - 1), VOCAB))
    padded(plain, folder / "holes", VOCAB + 6, [n for n in every if n % 3 != 1])
    write_tokenizer(plain, every)
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, list[list[int]]]:
    """Of the model without padding."""
    model = load(folder / "plain")
    return {name: say(model, **way) for name, way in WAYS.items()}


def say(model: archzoo.Model, **options: Any) -> list[list[int]]:
    return tokens(model.generate(PROMPTS, NEW, ignore_eos=True, **options))


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("greedy", {}),
        ("sampled", {"tp": 2, "attn_dp": 2}),
        ("top_k", {"tp": 3, "pp": 2}),
        ("top_p", {}),
    ],
)
def test_padding_is_as_if_it_were_not_there(
    folder: Path, answers: dict[str, list[list[int]]], way: str, options: dict[str, Any]
) -> None:
    model = load(folder / "more", **options)
    assert say(model, **WAYS[way]) == answers[way]
    pieces: list[list[int]] = [[] for _ in PROMPTS]
    stream = model.generate(PROMPTS, NEW, ignore_eos=True, stream=True, **WAYS[way])
    for piece in stream:
        pieces[piece.index] += piece.token_ids
    assert pieces == answers[way]
    logits = model.logits(PROMPTS[0])
    assert logits.shape[1] == VOCAB + 14 and logits[-1].argmax() >= VOCAB, "raw logits stay"
    top = model.logprobs(PROMPTS[0], top_k=1).top_logprobs[-1]
    assert top is not None and top[0][0] >= VOCAB


def test_without_a_tokenizer_nothing_is_known(folder: Path) -> None:
    found = say(load(folder / "unnamed"))
    assert max(map(max, found)) >= VOCAB


@pytest.mark.parametrize("way", WAYS)
def test_ids_missing_in_the_middle(folder: Path, way: str) -> None:
    model = load(folder / "holes")
    found = say(model, **WAYS[way])
    ends = model.stop_ids()
    assert all(token % 3 != 1 or token in ends for each in found for token in each)
    if way == "greedy":
        known = list(PROMPTS[0])
        for token in found[0]:
            logits = model.logits(known)[-1, :VOCAB]
            assert logits.argmax() % 3 == 1 or logits.argmax() == token
            logits[1::3] = -torch.inf
            assert token == logits.argmax()
            known.append(token)


def test_an_id_that_ends_an_output_needs_no_token(folder: Path, tmp_path: Path) -> None:
    """The model's own files name it, so it is no padding."""
    path = padded(folder / "plain", tmp_path / "ends", VOCAB + 6, range(VOCAB))
    model = load(path)
    silent = int(model.logits(PROMPTS[0])[-1].argmax())
    assert silent >= VOCAB
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, silent]}))
    found = load(path).generate(PROMPTS[0], NEW)
    assert (found.token_ids, found.finish_reason) == ([silent], "stop")


def test_a_tokenizer_of_another_model_is_told(folder: Path, tmp_path: Path) -> None:
    path = padded(folder / "plain", tmp_path / "foreign", VOCAB + 6, range(500, 510))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    with pytest.raises(InputError, match="no id of the tokenizer is below 136"):
        load(path).generate([1], 2)


@pytest.mark.parametrize(
    ("target", "draft", "way"),
    [
        ("little", "more", "greedy"),
        ("more", "little", "sampled"),
        ("plain", "more", "top_p"),
        ("more", "plain", "greedy"),
    ],
)
def test_drafts_with_another_padding(
    folder: Path, answers: dict[str, list[list[int]]], target: str, draft: str, way: str
) -> None:
    """The same model under both: always right, as no proposal is of the padding."""
    big, small = load(folder / target), load(folder / draft)
    found = big.generate(PROMPTS, NEW, ignore_eos=True, draft=small, **WAYS[way])
    assert tokens(found) == answers[way]
    assert all(each.speculation.acceptance == 1 for each in found)
    assert all(each.speculation.target_forwards < NEW / 2 for each in found)
    assert all_free(big, small)


def test_a_prompt_with_an_id_that_the_draft_lacks(folder: Path) -> None:
    big, small = load(folder / "more"), load(folder / "little")
    prompts = [[*PROMPTS[0], VOCAB + 9, 5], PROMPTS[2]]
    plain = big.generate(prompts, NEW, ignore_eos=True)
    found = big.generate(prompts, NEW, ignore_eos=True, draft=small)
    assert tokens(found) == tokens(plain)
    assert [each.speculation.proposed > 0 for each in found] == [False, True]
    assert all_free(big, small)


@pytest.mark.parametrize(
    ("target", "draft", "why"),
    [
        ("more", "other", "id 129 is None for the draft, 'w129' for its target"),
        ("unnamed", "little", "its target has no tokenizer"),
        ("little", "unnamed", "the draft has no tokenizer"),
    ],
)
def test_other_vocabularies_are_not_paired(folder: Path, target: str, draft: str, why: str) -> None:
    sizes = "vocabulary of 1.. tokens, its target one of 1.., and "
    with pytest.raises(InputError, match=sizes + ".*" + why):
        load(folder / target).generate([1], 2, draft=load(folder / draft))


def test_a_head_proposes_no_padding(folder: Path, tmp_path: Path) -> None:
    """Its map leads to ids of the padding, which it likes best."""
    size = VOCAB + 14
    sizes = {**eagle3.SIZES, "vocab_size": size, "draft_vocab_size": size}
    weights = eagle3.weights(sizes, seed=2)
    weights["lm_head.weight"][VOCAB:] *= 30
    eagle3.save(tmp_path / "head", sizes, weights)
    model, head = load(folder / "more"), load(tmp_path / "head")
    with proposals() as seen:
        found = model.generate(PROMPTS, NEW, ignore_eos=True, draft=head)
    assert tokens(found) == say(model)
    proposed = [token for _, each in seen for token in each]
    assert len(proposed) > NEW and max(proposed) < VOCAB
    assert all_free(model, head)


def test_a_draft_of_every_width() -> None:
    """Holes and end of the target's ids, over logits of heads that are wider and narrower."""
    allowed = Choosable([0, 2, 3, 7, 99], 10)
    for width in (3, 7, 8, 12):
        logits = torch.arange(2.0 * width).view(2, width)
        found = allowed.among(logits.clone())
        kept = [at for at in (0, 2, 3, 7) if at < width]
        assert found.shape == (2, min(width, 8))
        assert found.isfinite().nonzero()[:, 1].tolist() == kept * 2
        assert torch.equal(found[:, kept], logits[:, kept])
