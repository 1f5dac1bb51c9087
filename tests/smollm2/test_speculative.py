"""Speculative decoding on SmolLM2-135M, float32: ten prompts, 64 tokens each, equal to plain greedy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import eagle3
import pytest
import torch
from demo.run import demo_weights

import archzoo

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a dragon who",
    "def fibonacci(n):",
    "Water boils at",
    "The three laws of motion are",
    "Dear Sir or Madam,",
    "1, 2, 4, 8, 16,",
    "A model layer turns a checkpoint into",
    "Monday, Tuesday, Wednesday,",
    "In the beginning",
]
NEW, PROPOSED = 64, 4


@pytest.fixture(scope="module")
def model() -> archzoo.Model:
    return archzoo.load(demo_weights(), dtype=torch.float32)


def generate(model: archzoo.Model, **options: Any) -> Any:
    return model.generate(PROMPTS, NEW, ignore_eos=True, **options)


@pytest.fixture(scope="module")
def plain(model: archzoo.Model) -> list[list[int]]:
    return [result.token_ids for result in generate(model)]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, model: archzoo.Model) -> archzoo.Model:
    """An EAGLE-3 head of random weights, with SmolLM2's embedding and half of its vocabulary."""
    config = eagle3.SIZES | {
        "vocab_size": model.config.vocab_size,
        "draft_vocab_size": model.config.vocab_size // 2,
        "hidden_size": model.config.hidden_size,
        "intermediate_size": 768,
        "num_attention_heads": 9,
        "max_position_embeddings": 2048,
    }
    tensors = eagle3.weights(config, embedding=False)
    path: Path = eagle3.save(tmp_path_factory.mktemp("head"), config, tensors)
    return archzoo.load(path, target=model, dtype=torch.float32)


def test_a_head_of_random_weights_changes_no_token(
    model: archzoo.Model, head: archzoo.Model, plain: list[list[int]]
) -> None:
    drafted = generate(model, draft=head, draft_tokens=2)  # each is a row more to compute
    assert [result.token_ids for result in drafted] == plain
    assert model.module.aux_layers == (2, 15, 27)
    assert all(result.speculation.proposed > NEW for result in drafted)
    model.set_aux_layers(())


def test_the_model_as_its_own_draft(model: archzoo.Model, plain: list[list[int]]) -> None:
    drafted = generate(model, draft=model, draft_tokens=PROPOSED)
    assert [result.token_ids for result in drafted] == plain
    for result in drafted:
        assert result.speculation.target_forwards <= math.ceil(NEW / (PROPOSED + 1)) + 1
        assert result.speculation.acceptance == 1


def test_a_stop_string_inside_an_accepted_run(model: archzoo.Model) -> None:
    prompt, options = PROMPTS[1], {"max_new_tokens": 20, "ignore_eos": True}
    word = model.generate(prompt, **options).text.split()[5]
    want = model.generate(prompt, stop=word, **options)
    got = model.generate(prompt, stop=word, draft=model, draft_tokens=7, **options)
    assert (got.token_ids, got.text, got.finish_reason) == (
        want.token_ids,
        want.text,
        want.finish_reason,
    )
    parts = model.generate(prompt, stop=word, stream=True, draft=model, **options)
    assert "".join(part.text for part in parts) == want.text
