"""Attention groups: requests and slots of their own, one model; beside one rank, over NaN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.pipelines import COMMON, PROMPTS, VARIANTS, VOCAB, Checkpoints, close, load
from runtime.topologies import BYTES_ONLY
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification

import archzoo
from archzoo.errors import InputError, LogitsError
from archzoo.forward import ForwardMode, PoolingRequest
from archzoo.layers import PoolingType
from archzoo.runtime.engine import Engine
from archzoo.runtime.request import Request, SamplingParams
from archzoo.runtime.runner import Wanted
from archzoo.runtime.step import Step, idle_step
from tiny import SIZES, ids_of, randomise, save

SPOILT = 77
"""An id whose embedding is NaN in the spoilt checkpoint."""
SLOTS = 64
"""Of each attention group."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "two groups of two": {"tp": 4, "attn_dp": 2},
    "a head for each group": {"tp": 4, "attn_dp": 2, "dp_lm_head": True},
    "groups of one": {"tp": 4, "attn_dp": 4, "plan": "naive"},
    "in slices": {"tp": 8, "attn_dp": 2, "costs": BYTES_ONLY},
    "in stages": {"tp": 4, "attn_dp": 2, "pp": 3, "pp_micro_batches": 3},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with biases whose ids 0 and 77 have NaN for an embedding: padding holds id 0."""
    folder = tmp_path_factory.mktemp("checkpoint")
    source = Checkpoints(folder)("several")[0]
    stored = load_file(source / "model.safetensors")
    stored["model.embed_tokens.weight"][[0, SPOILT]] = torch.nan
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    return source


def poisoned(model: archzoo.Model) -> archzoo.Model:
    """The model, NaN in every slot of every rank."""
    model.engine.clear_cache()
    for runner in model.engine.runners:
        for spec in runner.pool.layout.specs:
            kv = runner.pool.layer(spec.layer_id)
            assert kv is not None
            kv.k.fill_(torch.nan), kv.v.fill_(torch.nan)
    return model


@pytest.fixture(scope="module")
def one(path: Path) -> archzoo.Model:
    return load(path, check_values=False)


@pytest.fixture(scope="module", params=LAYOUTS)
def loaded(request: pytest.FixtureRequest, path: Path) -> archzoo.Model:
    return load(path, kv_slots=SLOTS, check_values=False, **LAYOUTS[request.param])


@pytest.fixture
def many(loaded: archzoo.Model) -> Iterator[archzoo.Model]:
    """In several groups; after each test nothing may be left behind."""
    yield poisoned(loaded)
    assert not loaded.engine.has_work
    assert [lane.slots.available for lane in loaded.engine.lanes] == [SLOTS] * groups(loaded)


def groups(model: archzoo.Model) -> int:
    return model.engine.executor.topology.attn_dp


def tokens(model: archzoo.Model, prompts: list[list[int]], count: int = 5) -> list[list[int]]:
    return [each.token_ids for each in model.generate(prompts, count, ignore_eos=True)]


RAGGED = [ids_of(n, VOCAB, seed=n) for n in (9, 1, 2, 14, 1, 5, 3)]
"""Seven prompts, of which no two groups have equally many rows."""


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_any_number_of_prompts(one: archzoo.Model, many: archzoo.Model, count: int) -> None:
    """Fewer than there are groups, as many, more: idle groups only take part in collectives."""
    prompts = RAGGED[:count]
    close(many.logits(prompts), one.logits(prompts))
    close(many.logits(prompts, chunk_size=3), one.logits(prompts))
    assert tokens(many, prompts) == tokens(one, prompts)


def test_nothing_to_compute(many: archzoo.Model) -> None:
    assert many.engine.step() == []
    assert many.logits([]).shape == many.logits([[]])[0].shape == (0, VOCAB)
    idle = [idle_step() for _ in many.engine.lanes]
    for output in many.engine.forward(idle, [Wanted()] * len(idle)):
        assert output.next_token_logits is not None
        assert output.next_token_logits.shape == (0, VOCAB)
    for output in many.engine.forward(idle, [Wanted(pooling=PoolingRequest(()))] * len(idle)):
        assert output.pooled is not None and output.pooled.shape[0] == 0


def test_empty_prompts_among_others(one: archzoo.Model, many: archzoo.Model) -> None:
    prompts = [[], RAGGED[0], [], [], RAGGED[3], RAGGED[1], []]
    got = many.logits(prompts, chunk_size=4)
    close(got, one.logits(prompts))
    assert [len(each) for each in got] == [0, 9, 0, 0, 14, 1, 0]


def test_requests_go_to_the_group_with_the_least_to_do(many: archzoo.Model) -> None:
    """A long prompt keeps the other groups busy with short ones; numbers are shared."""
    prompts = [ids_of(12, VOCAB), *([5] for _ in range(2 * groups(many)))]
    requests = [many._request(ids, SamplingParams(3, ignore_eos=True)) for ids in prompts]
    for request in requests:
        many.engine.add(request)
    held = [[r for r in requests if lane.holds(r)] for lane in many.engine.lanes]
    while many.engine.has_work:
        many.engine.step()
    assert held[0] == requests[:1] and all(len(each) > 1 for each in held[1:])
    assert len({request.request_id for request in requests}) == len(requests)
    assert {request.finish_reason for request in requests} == {"length"}


def test_groups_fill_slots_of_their_own(many: archzoo.Model) -> None:
    """The same slot numbers in every group, and other tokens in them."""
    engine, prompts = many.engine, RAGGED[: groups(many)]
    requests = [engine.add(many._request(ids, SamplingParams(2))) for ids in prompts]
    engine.step()
    assert [lane.slots.available for lane in engine.lanes] == [SLOTS - len(p) for p in prompts]
    for runner in engine.runners:
        kv = runner.pool.layer(runner.pool.layout.specs[0].layer_id)
        assert kv is not None
        filled = int(kv.k.isfinite().all(dim=(1, 2)).sum())
        assert filled == len(prompts[runner.group_index]), "rows of another group were cached"
    for request in requests:
        engine.abort(request)
        engine.abort(request)
    with pytest.raises(InputError, match="not of this scheduler"):
        engine.abort(Request([5], SamplingParams(1), frozenset(), None, VOCAB))


def test_groups_in_different_modes(one: archzoo.Model, many: archzoo.Model) -> None:
    """One group decodes while another is at its prompt: a later request, in chunks."""
    stream = many.generate(RAGGED[0], 8, ignore_eos=True, stream=True)
    first = [next(stream), next(stream)]
    late = tokens(many, RAGGED[2:5])
    rest = list(stream)
    assert [t for piece in first + rest for t in piece.token_ids] == tokens(one, RAGGED[:1], 8)[0]
    assert late == tokens(one, RAGGED[2:5])


def test_streams_of_which_one_is_left(one: archzoo.Model, many: archzoo.Model) -> None:
    left = many.generate(RAGGED[3:5], 9, ignore_eos=True, stream=True)
    kept = many.generate(RAGGED[:3], 6, ignore_eos=True, stream=True)
    first = next(kept)
    next(left)
    left.close()
    pieces = [first, *kept]
    for at, want in enumerate(tokens(one, RAGGED[:3], 6)):
        assert [t for piece in pieces if piece.index == at for t in piece.token_ids] == want


def test_drawn_tokens(one: archzoo.Model, many: archzoo.Model) -> None:
    options: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "seed": 5, "ignore_eos": True}
    got = [each.token_ids for each in many.generate(RAGGED, 6, **options)]
    assert got == [each.token_ids for each in one.generate(RAGGED, 6, **options)]


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_log_probabilities(one: archzoo.Model, many: archzoo.Model, chunk: int | None) -> None:
    want, got = (
        model.logprobs(RAGGED[3], start=2, top_k=3, temperature=0.7, chunk_size=chunk)
        for model in (one, many)
    )
    assert got.token_logprobs[:2] == [None, None]
    assert got.token_logprobs[2:] == pytest.approx(want.token_logprobs[2:], abs=1e-9)
    for tops, others in zip(got.top_logprobs[2:], want.top_logprobs[2:], strict=True):
        assert tops is not None and others is not None
        assert [token for token, _ in tops] == [token for token, _ in others]


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("pooling", [PoolingType.LAST, PoolingType.MEAN, PoolingType.CLS])
def test_vectors(
    one: archzoo.Model,
    many: archzoo.Model,
    pooling: PoolingType,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for runner in (*one.engine.runners, *many.engine.runners):
        monkeypatch.setattr(runner.module.pooler, "pooling", pooling)
    for chunk in (None, 4) if pooling is PoolingType.LAST else (None,):
        options: dict[str, Any] = {"normalize": False, "chunk_size": chunk}
        close([many.embed(RAGGED[:count], **options)], [one.embed(RAGGED[:count], **options)])


def test_a_prompt_over_a_cached_prefix(one: archzoo.Model, many: archzoo.Model) -> None:
    """What a prefix cache would do, in the last group; the others are idle."""
    ids, engine, last = ids_of(9, VOCAB), many.engine, groups(many) - 1
    for start, stop in ((0, 5), (5, 9)):
        step = Step(ForwardMode.EXTEND, [0], [0], [start], [stop - start], [9] * (stop - start))
        step.samples, step.input_ids = [True], ids[start:stop]
        step.new_slots = list(range(start, stop))
        steps = [idle_step() for _ in engine.lanes]
        steps[last] = step
        output = engine.forward(steps, [Wanted() for _ in steps])[last]
        assert output.next_token_logits is not None
        close([output.next_token_logits], [one.logits(ids)[start:stop]])


def test_unusable_logits_end_their_request_and_no_other(
    one: archzoo.Model, many: archzoo.Model
) -> None:
    """NaN of one request in one group; groups share every sum, and no row."""
    prompts = [[5, 6], [5, SPOILT], [7, 8, 9], [4]]
    requests = [many._request(ids, SamplingParams(4, ignore_eos=True)) for ids in prompts]
    for request in requests:
        many.engine.add(request)
    while many.engine.has_work:
        many.engine.step()
    assert isinstance(requests[1].error, LogitsError)
    assert str(requests[1].request_id) in str(requests[1].error)
    sound = [prompts[0], *prompts[2:]]
    assert [requests[at].output_ids for at in (0, 2, 3)] == tokens(one, sound, 4)


def test_a_forward_that_fails_counts_for_nothing(
    one: archzoo.Model, many: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group plans the same step again."""
    plain, failing = Engine._run, [True]

    def run(self: Engine, *args: Any) -> Any:
        if failing:
            failing.clear()
            raise ZeroDivisionError
        return plain(self, *args)

    monkeypatch.setattr(Engine, "_run", run)
    stream = many.generate(RAGGED[:3], 4, ignore_eos=True, stream=True)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert tokens(many, RAGGED[:3]) == tokens(one, RAGGED[:3])


def test_refused_requests_leave_nothing(many: archzoo.Model) -> None:
    with pytest.raises(InputError, match=f"context of {SLOTS}"):
        many.generate([[5], [6], ids_of(SLOTS, VOCAB)], max_new_tokens=9)


@pytest.mark.parametrize("attn_dp", [2, 4])
def test_a_tight_pool_preempts_in_each_group(path: Path, one: archzoo.Model, attn_dp: int) -> None:
    room = {"kv_slots": 24, "max_requests": 3, "prefill_chunk": 3}
    tight = load(path, tp=4, attn_dp=attn_dp, check_values=False, **room)
    prompts = [ids_of(1 + 3 * (n % 4), VOCAB, seed=n) for n in range(13)]
    assert tokens(poisoned(tight), prompts, 9) == tokens(one, prompts, 9)
    assert tight.engine.free_slots == 24 and not tight.engine.has_work


def test_more_prompts_than_one_scoring_pass_holds(path: Path, one: archzoo.Model) -> None:
    model = load(path, tp=4, attn_dp=4, kv_slots=40, check_values=False)
    prompts = [ids_of(1 + 5 * (n % 3), VOCAB, seed=n) for n in range(40)]
    close(poisoned(model).logits(prompts, chunk_size=7), one.logits(prompts))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_of_a_classifier(tmp_path: Path, layout: str) -> None:
    config = LlamaConfig(**{**SIZES, **COMMON, **VARIANTS["several"]}, num_labels=4)
    reference = LlamaForSequenceClassification(config).eval()
    randomise(reference)
    save(reference, tmp_path)
    one, many = load(tmp_path), poisoned(load(tmp_path, **LAYOUTS[layout]))
    for prompts in (RAGGED, PROMPTS[:1]):
        want = scores(one, prompts)
        close([scores(many, prompts), many.classify(prompts, chunk_size=3)], [want, want])


def scores(model: archzoo.Model, prompts: list[list[int]]) -> Tensor:
    found = model.classify(prompts)
    assert found.shape == (len(prompts), 4)
    return found
