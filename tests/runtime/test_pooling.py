"""Vectors and scores of prompts whose first tokens are in the pool already, or come in chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification

import archzoo
from archzoo.errors import InputError
from archzoo.forward import ForwardMode, PoolingRequest
from archzoo.runtime.runner import Wanted
from archzoo.runtime.step import Step
from tiny import SIZES, ids_of, randomise, save

KINDS = ("LlamaForSequenceClassification", "LlamaModel")


SIZES_OF_AXES = ((1, 1), (3, 1), (1, 3))
"""tp and pp."""


@pytest.fixture(
    scope="module", params=[(kind, *sizes) for kind in KINDS for sizes in SIZES_OF_AXES], ids=str
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> archzoo.Model:
    kind, tp, pp = request.param
    return load(kind, tmp_path_factory.mktemp("checkpoint"), tp, pp)


def load(kind: str, path: Path, tp: int = 1, pp: int = 1) -> archzoo.Model:
    reference = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=4)).eval()
    randomise(reference)
    save(reference if kind == KINDS[0] else reference.model, path)
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [kind]}))
    return archzoo.load(path, dtype=torch.float32, tp=tp, pp=pp, kv_slots=256)


def answer(model: archzoo.Model, prompts: Any, **options: Any) -> Tensor:
    """Scores, or raw vectors."""
    if "classify" in model.module.serves:
        return model.classify(prompts, **options)
    return model.embed(prompts, normalize=False, **options)


class Pool:
    """Requests over slots that a radix cache would hand out: rows of the table share a prefix."""

    def __init__(self, model: archzoo.Model) -> None:
        self.engine, self.free = model.engine, list(range(256))
        self.held: dict[int, list[int]] = {}

    def share(self, row: int, other: int, count: int) -> None:
        """The first tokens of a row are those of another, in the same slots."""
        self.held[row] = self.held[other][:count]
        for runner in self.engine.runners:
            runner.pool.req_to_token[row, :count] = torch.tensor(self.held[row])

    def run(self, prompts: dict[int, list[int]], ending: tuple[int, ...]) -> Tensor:
        """What is not held yet of each row's prompt, in one forward."""
        step = Step(ForwardMode.EXTEND)
        for row, ids in prompts.items():
            held = self.held.setdefault(row, [])
            new = ids[len(held) :]
            slots = [self.free.pop() for _ in new]
            step.request_ids.append(row)
            step.req_pool_indices.append(row)
            step.prefix_lens.append(len(held))
            step.extend_lens.append(len(new))
            step.known_lens += [len(ids)] * len(new)
            step.samples.append(True)
            step.input_ids += new
            step.new_slots += slots
            held += slots
        wanted = Wanted(pooling=PoolingRequest(ending, None, False))
        (output,) = self.engine.forward([step], [wanted])
        assert output.pooled is not None
        return output.pooled


def test_a_prompt_over_a_cached_prefix_gives_the_same_row(model: archzoo.Model) -> None:
    ids, pool = ids_of(24), Pool(model)
    want = answer(model, ids)
    first = pool.run({0: ids}, (0,))
    pool.share(1, 0, 16)
    again = pool.run({1: ids}, (0,))
    torch.testing.assert_close(first, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(again, want, rtol=0, atol=1e-5)


def test_prompts_that_share_a_prefix_in_one_forward(model: archzoo.Model) -> None:
    """One token over 15 cached ones, nine over 15, and one prompt without a prefix, together."""
    head = ids_of(15)
    prompts = {1: [*head, 7], 2: [*head, *ids_of(9)], 3: ids_of(5)}
    pool = Pool(model)
    pool.run({0: head}, ())
    pool.share(1, 0, 15)
    pool.share(2, 0, 15)
    got = pool.run(prompts, (0, 1, 2))
    torch.testing.assert_close(got, answer(model, list(prompts.values())), rtol=0, atol=1e-5)


def test_only_requests_that_end_give_a_row(model: archzoo.Model) -> None:
    """A chunk of one prompt beside the end of another."""
    long, short, pool = ids_of(20), ids_of(6), Pool(model)
    assert pool.run({0: long[:8]}, ()).shape[0] == 0
    got = pool.run({0: long[:14], 1: short}, (1,))
    torch.testing.assert_close(got, answer(model, [short]), rtol=0, atol=1e-5)
    torch.testing.assert_close(pool.run({0: long}, (0,)), answer(model, long), rtol=0, atol=1e-5)


def test_chunks_larger_batches_and_leaks(model: archzoo.Model) -> None:
    prompts = [ids_of(1 + 7 * (n % 5), seed=n) for n in range(40)]
    want = torch.cat([answer(model, ids) for ids in prompts])
    for chunk in (None, 3, 8, 1000):
        got = answer(model, prompts, chunk_size=chunk)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert model.engine.free_slots == 256


class Words:
    """A tokenizer of letters; a conversation is its texts, and 99 begins another turn."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat(self, messages: Any, add_generation_prompt: bool = True) -> list[int]:
        ids = [ord(letter) for message in messages for letter in message["content"]]
        return [*ids, 99] if add_generation_prompt else ids


def test_texts_and_conversations_are_scored_to_their_ends(tmp_path: Path) -> None:
    model = load(KINDS[0], tmp_path)
    model._checkpoint.__dict__["tokenizer"] = Words()
    want = model.classify([[ord("h"), ord("i")], [ord("a")]])
    assert torch.equal(model.classify(["hi", "a"]), want)
    assert torch.equal(model.classify("hi"), want[:1])
    chat = [{"role": "user", "content": "h"}, {"role": "assistant", "content": "i"}]
    assert torch.equal(model.classify(chat), want[:1]), "another turn was begun"
    torch.testing.assert_close(model.classify([chat, "a"]), want)
    assert list(model.encode(chat)) == [ord("h"), ord("i"), 99]
    with pytest.raises(InputError, match="prompt 0 is empty"):
        model.classify("")
