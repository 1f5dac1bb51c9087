"""Whole models in pipeline stages, beside one rank: what comes back, and what each stage holds."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.pipelines import COMMON, LAYERS, PROMPTS, VARIANTS, VOCAB, Checkpoints, close, load
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForSequenceClassification

import archzoo
from archzoo.errors import CapacityError, InputError, LogitsError
from archzoo.forward import PoolingRequest
from archzoo.runtime import memory
from archzoo.runtime.executor import SimulatedExecutor
from archzoo.runtime.runner import Wanted
from archzoo.runtime.step import idle_step
from tiny import SIZES, ids_of, randomise, save, tiny_llama


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def pair(checkpoints: Checkpoints) -> tuple[archzoo.Model, archzoo.Model]:
    """One rank, and six ranks in two stages with micro-batches."""
    path = checkpoints("tied")[0]
    return load(path), load(path, tp=3, pp=2, pp_micro_batches=4)


Pair = tuple[archzoo.Model, archzoo.Model]


def test_rotations_that_depend_on_length(tmp_path: Path) -> None:
    """Micro-batches and chunks rotate by the whole prompt's length, on every stage."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    path, _ = tiny_llama(tmp_path, max_position_embeddings=8, rope_parameters=rope)
    one, many = load(path), load(path, tp=3, pp=3, pp_micro_batches=3)
    close(many.logits(PROMPTS), one.logits(PROMPTS))
    close(many.logits(PROMPTS, chunk_size=4), one.logits(PROMPTS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_hand_off_changes_no_bit(checkpoints: Checkpoints, dtype: torch.dtype) -> None:
    path = checkpoints("tied")[0]
    one, many = load(path, dtype=dtype), load(path, dtype=dtype, pp=3, pp_micro_batches=1)
    for got, want in zip(many.logits(PROMPTS), one.logits(PROMPTS), strict=True):
        assert torch.equal(got, want)


def test_each_rank_hands_its_rows_to_its_own_number_in_the_next_stage(pair: Pair) -> None:
    executor = pair[1].engine.executor
    assert isinstance(executor, SimulatedExecutor)
    with executor._world.record() as log:
        pair[1].logits(PROMPTS[0])
    handed = [(call.kind, call.rank, call.nbytes) for call in log if call.group == "pp"]
    rows = 36 * 8
    for kind, ranks in (("send", (0, 1, 2)), ("recv", (3, 4, 5))):
        for rank in ranks:
            sizes = [nbytes // rows for what, who, nbytes in handed if (what, who) == (kind, rank)]
            assert sizes == [2, 3, 3, 3], "eleven rows in four micro-batches"
    assert len(handed) == 24, "and nothing else over this group"


# --- what comes back ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_log_probabilities(pair: Pair, chunk: int | None) -> None:
    one, many = (
        model.logprobs(PROMPTS[0], start=2, top_k=3, temperature=0.7, chunk_size=chunk)
        for model in pair
    )
    assert many.token_logprobs[:2] == [None, None] and len(many.token_logprobs) == 11
    assert many.token_logprobs[2:] == pytest.approx(one.token_logprobs[2:], abs=1e-9)
    for got, want in zip(many.top_logprobs, one.top_logprobs, strict=True):
        assert [token for token, _ in got or ()] == [token for token, _ in want or ()]
        assert [p for _, p in got or ()] == pytest.approx([p for _, p in want or ()], abs=1e-9)


def test_vectors_of_a_language_model(pair: Pair) -> None:
    one, many = (model.embed(PROMPTS, dimensions=9, chunk_size=4) for model in pair)
    close([many], [one])
    with pytest.raises(InputError, match="dimensions=37"):
        pair[1].embed(PROMPTS, dimensions=37)


def test_nothing_to_compute(pair: Pair) -> None:
    assert pair[1].logits([]).shape == (0, VOCAB)
    assert [len(each) for each in pair[1].logits([[], PROMPTS[1], []])] == [0, 1, 0]
    for model in pair:
        assert model.engine.step() == []
        (empty,) = model.engine.forward([idle_step()], [Wanted()])
        assert empty.next_token_logits is not None
        assert empty.next_token_logits.shape == (0, VOCAB)
        (none,) = model.engine.forward([idle_step()], [Wanted(pooling=PoolingRequest(()))])
        assert none.pooled is not None and none.pooled.shape == (0, 36)


@pytest.mark.parametrize("kind", ["LlamaForSequenceClassification", "LlamaModel"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 3), (3, 2)])
def test_classifiers_and_embedding_models(tmp_path: Path, kind: str, tp: int, pp: int) -> None:
    config = LlamaConfig(**{**SIZES, **COMMON, **VARIANTS["tied"]}, num_labels=4)
    reference = LlamaForSequenceClassification(config).eval()
    randomise(reference)
    save(reference if kind != "LlamaModel" else reference.model, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [kind]}))
    one, many = load(tmp_path), load(tmp_path, tp=tp, pp=pp, pp_micro_batches=2)
    for chunk in (None, 4):
        if kind == "LlamaModel":
            got = [each.embed(PROMPTS, chunk_size=chunk) for each in (many, one)]
        else:
            got = [each.classify(PROMPTS, chunk_size=chunk) for each in (many, one)]
        close(got[:1], got[1:])
    with pytest.raises(InputError, match=r"not generate\(\)"):
        many.generate(PROMPTS[0])


def test_streams_give_the_pieces_as_they_come(pair: Pair) -> None:
    want = pair[0].generate(PROMPTS, max_new_tokens=6, ignore_eos=True)
    pieces = list(pair[1].generate(PROMPTS, max_new_tokens=6, ignore_eos=True, stream=True))
    for at, result in enumerate(want):
        assert [t for p in pieces if p.index == at for t in p.token_ids] == result.token_ids
    assert len(pieces) == 18 and pieces[0].finish_reason is None


def test_drawn_tokens_are_those_of_one_rank(pair: Pair) -> None:
    options: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "seed": 5}
    one, many = (model.generate(PROMPTS, 9, ignore_eos=True, **options) for model in pair)
    assert [each.token_ids for each in many] == [each.token_ids for each in one]
    assert len({tuple(each.token_ids) for each in one}) == 3


def test_a_tight_pool_preempts_on_all_stages_alike(
    checkpoints: Checkpoints,
) -> None:
    path = checkpoints("tied")[0]
    tight = load(path, pp=3, kv_slots=24, max_requests=3, prefill_chunk=3, pp_micro_batches=2)
    prompts = [ids_of(n, VOCAB, seed=n) for n in (7, 2, 9, 1, 5)]
    want = load(path).generate(prompts, max_new_tokens=9, ignore_eos=True)
    got = tight.generate(prompts, max_new_tokens=9, ignore_eos=True)
    assert [each.token_ids for each in got] == [each.token_ids for each in want]
    assert tight.engine.free_slots == 24


def test_unusable_logits_end_their_request_and_no_other(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """The embedding of one id is NaN; the last stage sees it, the first tells whose it was."""
    path = checkpoints("several")[0]
    stored = load_file(path / "model.safetensors")
    stored["model.embed_tokens.weight"][77] = torch.nan
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    model = load(tmp_path, tp=2, pp=3, check_values=False)
    with pytest.raises(LogitsError, match="request 0 hold NaN"):
        model.generate([[5, 77], [5, 6]], max_new_tokens=3, ignore_eos=True)
    assert model.engine.free_slots == 256 and not model.engine.has_work
    assert len(model.generate([5, 6], max_new_tokens=3, ignore_eos=True).token_ids) == 3


# --- what each stage holds ------------------------------------------------------------------------


def test_every_pool_holds_the_layers_of_its_stage(
    checkpoints: Checkpoints,
) -> None:
    model = load(checkpoints("replicated")[0], tp=2, pp=3, pp_layers=(1, 4, 2))
    held = [[spec.layer_id for spec in runner.pool.layout.specs] for runner in model.engine.runners]
    assert held == [[0]] * 2 + [[1, 2, 3, 4]] * 2 + [[5, 6]] * 2
    for runner in model.engine.runners:
        here = {layer for layer in range(LAYERS) if runner.pool.layer(layer) is not None}
        assert here == set(runner.module.model.stage.layers)


def test_pools_of_uneven_stages_share_the_memory(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer and six: a slot costs seven layers in this process, not twice the first stage."""
    path = checkpoints("several")[0]
    slot = LAYERS * 2 * 8 * 4 * 8  # layers, k and v, KV heads, head_dim, bytes
    monkeypatch.setattr(memory, "available_bytes", lambda device: slot * 100)
    monkeypatch.setattr(memory, "check_fits", lambda *args: None)
    monkeypatch.setattr("archzoo.runtime.loading.check_fits", lambda *args: None)
    options: dict[str, Any] = {"pp": 2, "pp_layers": (1, 6)}
    assert load(path, kv_slots=100, **options).engine.limits.pool.slots == 100
    assert load(path, kv_slots=None, **options).engine.limits.pool.slots == 40
    with pytest.raises(CapacityError, match="at most 100"):
        load(path, kv_slots=101, **options)


def test_a_stored_head_that_differs_is_kept_as_on_one_rank(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    path = checkpoints("tied")[0]
    stored = {k: v.clone() for k, v in load_file(path / "model.safetensors").items()}
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    found = []
    for options in ({}, {"pp": 2}, {"tp": 3, "pp": 3}):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = load(tmp_path, **options)
        assert ["tie_word_embeddings" in str(each.message) for each in told] == [True]
        found.append(model.logits(PROMPTS[0]))
    close(found[1:], found[:1] * 2)
    assert not torch.allclose(found[0], load(path).logits(PROMPTS[0]))


def test_reports_of_all_ranks_account_for_every_tensor(
    checkpoints: Checkpoints,
) -> None:
    path = checkpoints("fused")[0]
    stored = load_file(path / "model.safetensors")
    reports = load(path, tp=2, pp=3).reports
    assert len(reports) == 6
    loaded = [set(report.loaded) for report in reports]
    assert loaded[::2] == loaded[1::2], "ranks of a stage read slices of the same tensors"
    assert set.union(*loaded) == set(stored) and sum(map(len, loaded[::2])) == len(stored)
    for report in reports:
        assert set(report.loaded) | set(report.elsewhere) == set(stored)
