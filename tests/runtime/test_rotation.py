"""Rotations that depend on length: what `generate` says when an output outgrows the original one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import eagle3
import pytest
import torch
from runtime.drafts import all_free, load, noisy, proposals, tokens
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen3ForCausalLM,
)

import archzoo
from tiny import SIZES, ids_of, randomise, save

ORIGINAL = 24
"""Tokens past which a rotation changes."""
NEW = 14
SCALED: dict[str, Any] = {"factor": 4.0, "rope_theta": 10000.0}
LONG = {
    **SCALED,
    "rope_type": "longrope",
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0, 1.2, 1.7, 2.2],
    "long_factor": [2.0, 3.5, 5.0, 8.0],
}
PARTIAL = {
    **LONG,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.7],
    "long_factor": [3.0, 6.0],
}
PHI3 = {"original_max_position_embeddings": ORIGINAL, "num_key_value_heads": 2}


def llama(kind: str, **more: Any) -> tuple[type[PreTrainedModel], dict[str, Any]]:
    return LlamaForCausalLM, {"rope_parameters": {**SCALED, "rope_type": kind, **more}}


ALIKE = {
    "default": (LlamaForCausalLM, {}),
    "linear": llama("linear"),
    "yarn": llama("yarn", original_max_position_embeddings=ORIGINAL),
    "llama3": llama(
        "llama3",
        original_max_position_embeddings=ORIGINAL,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
    "phi3": (Phi3ForCausalLM, {"rope_parameters": LONG, **PHI3}),
    "phi3-partial": (Phi3ForCausalLM, {"rope_parameters": PARTIAL, **PHI3}),
    "phi3-window": (Phi3ForCausalLM, {"rope_parameters": LONG, "sliding_window": 9, **PHI3}),
}
"""Every token is that of computing everything anew."""
KEPT = {
    "dynamic": (
        LlamaForCausalLM,
        {
            "max_position_embeddings": ORIGINAL,
            "rope_parameters": {**SCALED, "rope_type": "dynamic"},
        },
    ),
    "longrope": (LlamaForCausalLM, {"rope_parameters": LONG}),
    "mistral": (MistralForCausalLM, {"rope_parameters": LONG, "sliding_window": None}),
    "qwen3": (Qwen3ForCausalLM, {"rope_parameters": LONG, "head_dim": 8}),
}
"""Families whose reference keeps the keys it has."""
PROMPTS = [ids_of(count) for count in (20, 3, 24, 25, 11, 1)]


def make(folder: Path, name: str) -> tuple[archzoo.Model, PreTrainedModel]:
    kind, changes = {**ALIKE, **KEPT}[name]
    reference = kind(kind.config_class(**{**SIZES, **changes})).eval()
    randomise(reference, seed=3)
    return archzoo.load(save(reference, folder), dtype=torch.float32), reference


def of_reference(reference: PreTrainedModel, ids: list[int], count: int = NEW) -> list[int]:
    reference(torch.tensor([[1]]))  # a dynamic rotation remembers the longest sequence until then
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None}
    found = reference.generate(torch.tensor([ids]), max_new_tokens=count, **options)
    return list(found[0].tolist()[len(ids) :])


def anew(model: archzoo.Model, ids: list[int], count: int = NEW) -> list[int]:
    """The likeliest token after everything so far, again and again."""
    known = list(ids)
    for _ in range(count):
        known.append(int(model.logits(known)[-1].argmax()))
    return known[len(ids) :]


@pytest.mark.parametrize("name", ALIKE)
def test_each_token_is_the_likeliest_after_all_before_it(tmp_path: Path, name: str) -> None:
    model, reference = make(tmp_path, name)
    for ids in PROMPTS[:4]:
        found = model.generate(ids, NEW, ignore_eos=True).token_ids
        assert found == anew(model, ids) == of_reference(reference, ids)


@pytest.mark.parametrize("name", KEPT)
def test_keys_stay_where_those_of_the_reference_stay(tmp_path: Path, name: str) -> None:
    model, reference = make(tmp_path, name)
    for ids in PROMPTS[:4]:
        found = model.generate(ids, NEW, ignore_eos=True).token_ids
        assert found == of_reference(reference, ids)
        crossing = name == "dynamic" or len(ids) <= ORIGINAL < len(ids) + NEW - 1
        if len(ids) > 3 and crossing:
            assert found != anew(model, ids), "nothing to tell"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Phi-3, the same with noise and another original length, and a head for it."""
    folder = tmp_path_factory.mktemp("rotation")
    make(folder / "phi3", "phi3")
    other = LONG | {"original_max_position_embeddings": 29}
    changes = {"rope_parameters": other, "original_max_position_embeddings": 29}
    noisy(folder / "phi3", folder / "noisy", 0.05, **changes)
    eagle3.save(folder / "head", eagle3.SIZES, eagle3.weights(eagle3.SIZES, seed=2))
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[list[int]]:
    model = load(folder / "phi3")
    return [anew(model, ids) for ids in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk": 5},
        {"prefix_cache": False, "prefill_chunk": 1},
        {"kv_slots": 64, "max_requests": 4},
        {"kv_slots": 40, "prefix_cache": False, "prefill_chunk": 9},
        {"tp": 2, "pp": 3, "pp_micro_batches": 3},
        {"tp": 2, "attn_dp": 2, "kv_slots": 80},
    ],
    ids=str,
)
def test_batches_and_streams_cross(
    folder: Path, answers: list[list[int]], options: dict[str, Any]
) -> None:
    model = load(folder / "phi3", **options)
    for _ in range(2):  # the second time over cached prefixes
        assert tokens(model.generate(PROMPTS, NEW, ignore_eos=True)) == answers
    pieces: list[list[int]] = [[] for _ in PROMPTS]
    for piece in model.generate(PROMPTS, NEW, ignore_eos=True, stream=True):
        pieces[piece.index] += piece.token_ids
    assert pieces == answers
    assert all_free(model)


def test_a_cached_prefix_is_of_short_sequences(folder: Path) -> None:
    """An output that has crossed leaves what it had before, and nothing of what it has now."""
    model, plain = load(folder / "phi3"), load(folder / "phi3", prefix_cache=False)
    first = model.generate(PROMPTS[0], NEW, ignore_eos=True)
    known = PROMPTS[0] + first.token_ids
    for length in (10, ORIGINAL, ORIGINAL + 1, len(known)):
        again = model.generate(known[:length], 2, ignore_eos=True)
        assert again.token_ids == plain.generate(known[:length], 2, ignore_eos=True).token_ids
        assert again.cached_tokens == (length - 1 if length <= ORIGINAL else 0)
        want = plain.logprobs(known[:length]).token_logprobs
        assert model.logprobs(known[:length]).token_logprobs == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_proposal_never_reaches_across(
    folder: Path, answers: list[list[int]], count: int
) -> None:
    """The model as its own draft is always right, on both sides of the length and at it."""
    model = load(folder / "phi3")
    found = model.generate(PROMPTS, NEW, ignore_eos=True, draft=model, draft_tokens=count)
    assert tokens(found) == answers
    assert all(each.speculation.acceptance == 1 for each in found)
    assert all_free(model)


@pytest.mark.parametrize("options", [{}, {"kv_slots": 48}, {"tp": 2, "attn_dp": 2}], ids=str)
def test_drafts_cross_too(folder: Path, answers: list[list[int]], options: dict[str, Any]) -> None:
    """A draft's own keys turn by its own original length: it proposes what it would generate."""
    model, noise = load(folder / "phi3", **options), load(folder / "noisy")
    with proposals() as seen:
        found = model.generate(PROMPTS, NEW, ignore_eos=True, draft=noise, draft_tokens=3)
    assert tokens(found) == answers
    lengths = {len(stood) for stood, _ in seen}
    assert min(lengths) < ORIGINAL and max(lengths) > 30
    for stood, proposed in seen:
        assert noise.generate(stood, len(proposed), ignore_eos=True).token_ids == proposed
    assert all_free(model, noise)


@pytest.mark.parametrize("own", [None, 28])
def test_a_draft_that_reads_states_sees_all_of_them_again(
    folder: Path, answers: list[list[int]], own: int | None
) -> None:
    """Where its own keys are to be made again and the states are gone, it proposes no more."""
    model, head = load(folder / "phi3"), load(folder / "head")
    head.engine.limits = replace(head.engine.limits, recompute_after=own)
    with proposals() as seen:
        found = model.generate(PROMPTS, NEW, ignore_eos=True, draft=head)
    assert tokens(found) == answers
    lengths = {len(stood) for stood, _ in seen}
    assert min(lengths) < ORIGINAL < 28 in lengths
    assert (29 in lengths) == (own is None)
    assert all_free(model, head)


def test_a_score_in_chunks_turns_by_the_whole_length(folder: Path) -> None:
    model = load(folder / "phi3")
    ids = ids_of(ORIGINAL + 6)
    torch.testing.assert_close(model.logits(ids, chunk_size=7), model.logits(ids))
