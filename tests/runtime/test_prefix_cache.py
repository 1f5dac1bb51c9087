"""Prefix cache: requests share slots, answers stay as they are, and no slot is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.fake_model import FakeModel, alone, cached_slots
from transformers import LlamaConfig, LlamaForSequenceClassification

import archzoo
from archzoo.errors import InputError, LogitsError
from archzoo.layers import PoolingType
from archzoo.runtime import CacheStats
from archzoo.runtime.engine import Engine
from archzoo.runtime.micro_batches import micro_batches
from archzoo.runtime.prefix_cache import WORTH_WAITING, PrefixCache
from archzoo.runtime.request import Request, RequestState, SamplingParams
from archzoo.runtime.runner import Wanted
from archzoo.runtime.scheduler import Scheduler
from archzoo.runtime.slots import SlotAllocator
from tiny import SIZES, ids_of, randomise, save, tiny_llama


def build(slots: int = 64, rows: int = 1024, chunk: int | None = None) -> FakeModel:
    allocator = SlotAllocator(slots)
    cache = PrefixCache(allocator, slots)
    scheduler = Scheduler(allocator, 4, slots, chunk, rows, cache=cache)
    return FakeModel(scheduler, 4, slots)


def ask(model: FakeModel, prompt: list[int], new: int = 2) -> Request:
    return model.scheduler.add(Request(prompt, SamplingParams(new)))


def test_the_second_of_two_computes_what_is_new() -> None:
    model = build()
    first = ask(model, [1, 2, 3, 4], 3)
    model.run()
    second = ask(model, [1, 2, 9], 2)
    model.run()
    assert [step.extend_lens for step in model.steps] == [[4], [1], [1], [1], [1]]
    assert [step.prefix_lens for step in model.steps] == [[0], [4], [5], [2], [3]]
    assert [step.borrowed_slots for step in model.steps] == [{}, {}, {}, {0: [0, 1]}, {}]
    assert second.output_ids == alone([1, 2, 9], 2)
    assert (first.cached_tokens, second.cached_tokens) == (0, 2)
    stats = model.scheduler.cache.stats
    assert stats == CacheStats(prompt_tokens=7, cached_tokens=2, held_tokens=8)
    assert stats.hit_rate == 2 / 7 and CacheStats().hit_rate == 0


def test_the_last_token_is_always_computed() -> None:
    model = build()
    for n in range(3):
        assert ask(model, [5, 6, 7], 1).request_id == n
        model.run()
    assert [step.extend_lens for step in model.steps] == [[3], [1], [1]]
    ask(model, [5], 1)
    model.run()
    assert model.steps[-1].prefix_lens == [0]


def test_a_conversation_goes_on_behind_its_own_slots() -> None:
    """Prompt, answer and the next prompt lie side by side, where attention reads in place."""
    model = build()
    first = ask(model, [1, 2, 3], 4)
    model.run()
    ask(model, [1, 2, 3, *first.output_ids, 8, 9], 2)
    model.step()
    assert model.steps[-1].prefix_lens == [6], "the last new token was never computed"
    assert model.scheduler.running[0].slots == list(range(9))


def test_others_share_a_prompt_while_it_is_still_used() -> None:
    model = build(chunk=3)
    long = ask(model, [1, 2, 3, 4, 5, 6, 7], 3)
    model.step()
    short = ask(model, [1, 2, 3, 8], 3)
    model.run()
    assert model.steps[1].extend_lens == [3, 1], "the first chunk is there for others already"
    assert model.steps[1].prefix_lens == [3, 3]
    assert short.output_ids == alone([1, 2, 3, 8], 3)
    assert long.output_ids == alone([1, 2, 3, 4, 5, 6, 7], 3)


def test_equal_prompts_side_by_side_keep_one_copy() -> None:
    model = build()
    for _ in range(2):
        ask(model, [1, 2, 3], 1)
    model.run()
    assert model.steps[0].extend_lens == [3, 3], "too few to wait for"
    assert len(cached_slots(model.scheduler)) == 3
    assert model.scheduler.slots.free_slots == 61


@pytest.mark.parametrize(("shared", "waits"), [(WORTH_WAITING, True), (WORTH_WAITING - 1, False)])
def test_many_tokens_that_another_is_computing_are_worth_waiting_for(
    shared: int, waits: bool
) -> None:
    model = build(slots=700)
    prompts = [[*range(shared), 1000 + n, n] for n in range(3)]
    requests = [ask(model, prompt) for prompt in prompts]
    model.run()
    rows = [step.extend_lens for step in model.steps]
    assert rows[:2] == ([[shared + 2], [1, 2, 2]] if waits else [[shared + 2] * 3, [1, 1, 1]])
    assert [r.output_ids for r in requests] == [alone(prompt, 2) for prompt in prompts]


def test_waiting_ends_with_what_is_waited_for() -> None:
    """Aborted half-way: what it has computed is there, and the next one computes the rest."""
    model = build(slots=700, chunk=100)
    first = ask(model, list(range(300)))
    second = ask(model, [*range(299), 7])
    model.step()
    assert second.state is RequestState.WAITING
    model.scheduler.abort(first)
    model.run()
    assert second.output_ids == alone([*range(299), 7], 2)
    assert second.cached_tokens == 100


def test_who_finds_no_room_holds_nothing_while_it_waits() -> None:
    model = build(slots=10)
    ask(model, [1, 2, 3], 1)
    model.run()
    ask(model, [7, 7, 7, 7, 7], 3)
    model.step()
    late = ask(model, [1, 2, 3, 4, 5], 2)
    model.step()
    assert late.state is RequestState.WAITING
    assert model.scheduler.cache.evictable == 3
    model.run()
    assert late.output_ids == alone([1, 2, 3, 4, 5], 2)
    assert model.scheduler.slots.available == 10


def test_cached_prefixes_give_way_before_anyone_is_put_back() -> None:
    model = build(slots=12)
    ask(model, [1, 2, 3, 4], 1)
    model.run()
    old, young = ask(model, [5, 6], 5), ask(model, [7, 8], 5)
    while model.step():
        assert young.state is not RequestState.WAITING and old.state is not RequestState.WAITING
    assert model.scheduler.cache.stats.evicted_tokens == 4
    assert young.output_ids == alone([7, 8], 5)


def test_what_a_request_that_is_put_back_has_computed_is_not_lost() -> None:
    model = build(slots=12)
    old, young = ask(model, [1, 2, 3], 9), ask(model, [4, 5, 6], 9)
    model.run()
    assert old.output_ids == alone([1, 2, 3], 9)
    assert young.output_ids == alone([4, 5, 6], 9)
    again = [step for step in model.steps if step.borrowed_slots]
    assert again and all(step.prefix_lens[-1] >= 1 for step in again)
    assert young.cached_tokens == 0, "of its prompt nothing was there when it came"
    assert model.scheduler.cache.stats.prompt_tokens == 6, "and it is counted once"


def test_a_cancelled_step_tells_borrowed_slots_again() -> None:
    model = build()
    ask(model, [1, 2, 3], 1)
    model.run()
    request = ask(model, [1, 2, 4], 2)
    step = model.scheduler.next_step()
    assert step is not None and step.borrowed_slots == {0: [0, 1]}
    model.scheduler.cancel_step(step)
    model.run()
    assert model.steps[1] == step
    assert request.output_ids == alone([1, 2, 4], 2)


def test_micro_batches_begin_with_borrowed_slots_once() -> None:
    model = build()
    ask(model, [1, 2], 1)
    model.run()
    ask(model, [1, 2, 3, 4, 5, 6], 1)
    step = model.scheduler.next_step()
    assert step is not None
    parts = [part for part, _ in micro_batches(step, Wanted(), 2)]
    assert [part.borrowed_slots for part in parts] == [{0: [0, 1]}, {}]
    assert [part.prefix_lens for part in parts] == [[2], [4]]


def test_a_request_with_an_error_leaves_nothing() -> None:
    model = build()
    request = ask(model, [1, 2, 3], 4)
    step = model.scheduler.next_step()
    assert step is not None
    request.error = LogitsError((0,), ("it",))
    model.scheduler.abort(request)
    model.scheduler.finish_step(step, [0])
    assert not cached_slots(model.scheduler) and model.scheduler.slots.free_slots == 64


# From here on with a real model.

POOL, TIGHT = 96, 52
TEMPLATES = [ids_of(n, seed=7) for n in (5, 17, 30)]
PROMPTS = [[*TEMPLATES[n % 3][: 3 + 2 * n], *ids_of(1 + n % 4, seed=n)] for n in range(18)]
"""Of 4 to 34 tokens; they part at many places."""
NEW = 8
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "one": {},
    "tp 3": {"tp": 3},
    "pp 2": {"pp": 2, "pp_micro_batches": 3},
    "dp 2": {"tp": 2, "attn_dp": 2},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))[0]


@pytest.fixture(scope="module")
def plain(path: Path) -> archzoo.Model:
    """Without a prefix cache."""
    return archzoo.load(path, dtype=torch.float64, prefix_cache=False)


@pytest.fixture
def model(path: Path) -> archzoo.Model:
    return archzoo.load(path, dtype=torch.float64, kv_slots=POOL)


@pytest.fixture(scope="module")
def answers(plain: archzoo.Model) -> list[list[int]]:
    """What each prompt gets without a cache."""
    found = [each.token_ids for each in plain.generate(PROMPTS, NEW, ignore_eos=True)]
    assert plain.cache_stats == CacheStats()
    return found


@contextmanager
def free_slots_hold_nan(model: archzoo.Model) -> Iterator[None]:
    """NaN goes into every slot that is given back, on every rank: whoever reads it is seen."""
    plain = SlotAllocator.free

    def free(self: SlotAllocator, slots: Any, room: int = 0) -> None:
        plain(self, slots, room)
        for runner in model.engine.runners:
            if model.engine.lanes[runner.group_index].slots is self:
                fill(runner, slots)

    for runner in model.engine.runners:
        fill(runner, range(model.engine.limits.pool.slots))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotAllocator, "free", free)
        yield


def fill(runner: Any, slots: Any) -> None:
    for spec in runner.pool.layout.specs:
        kv = runner.pool.layer(spec.layer_id)
        kv.k[list(slots)], kv.v[list(slots)] = torch.nan, torch.nan


def check_slots(model: archzoo.Model) -> None:
    """Each slot is free, or cached, or held by one request."""
    for lane in model.engine.lanes:
        cached = cached_slots(lane.scheduler)
        held = [s for r in lane.scheduler.running for s in r.slots if s not in cached]
        assert len(held) == len(set(held))
        assert lane.slots.free_slots + len(cached) + len(held) == lane.slots.num_slots


@pytest.mark.parametrize(
    ("topology", "streams"), [("one", 100), ("tp 3", 12), ("pp 2", 12), ("dp 2", 12)]
)
def test_streams_of_which_some_are_cancelled(
    path: Path, answers: list[list[int]], topology: str, streams: int
) -> None:
    """At most five at once, in a pool for one or two; every eighth forward fails."""
    model = archzoo.load(
        path,
        dtype=torch.float64,
        kv_slots=TIGHT,
        max_requests=4,
        prefill_chunk=9,
        **TOPOLOGIES[topology],
    )
    draw, forwards, run = random.Random(4), [0], Engine._run
    under_way: dict[Any, tuple[int, list[int]]] = {}

    def failing(self: Engine, *args: Any) -> Any:
        forwards[0] += 1
        if forwards[0] % 8 == 0:
            raise ZeroDivisionError
        return run(self, *args)

    with free_slots_hold_nan(model), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_run", failing)
        started = finished = 0
        while started < streams or under_way:
            if started < streams and len(under_way) < 5:
                number = draw.randrange(len(PROMPTS))
                request = model._request(PROMPTS[number], SamplingParams(NEW, ignore_eos=True))
                under_way[model.engine.add(request)] = (number, answers[number])
                started += 1
            try:
                model.engine.step()
            except ZeroDivisionError:
                pass
            check_slots(model)
            if under_way and draw.random() < 0.08:
                model.engine.abort(draw.choice(list(under_way)))
            for request in [each for each in under_way if each.finished]:
                _, want = under_way.pop(request)
                assert request.error is None
                assert request.output_ids == want[: request.num_output]
                finished += request.finish_reason == "length"
    assert finished > streams / 3
    check_slots(model)
    assert model.engine.free_slots == TIGHT
    assert model.cache_stats.hit_rate > 0.2 and model.cache_stats.evicted_tokens > 0


def test_results_tell_what_was_cached(model: archzoo.Model, answers: list[list[int]]) -> None:
    first, second = (model.generate(PROMPTS[9], NEW, ignore_eos=True) for _ in range(2))
    assert first.token_ids == second.token_ids == answers[9]
    length = len(PROMPTS[9])
    assert (first.cached_tokens, second.cached_tokens) == (0, length - 1)
    assert model.cache_stats == CacheStats(2 * length, length - 1, 0, length + NEW - 1)
    model.engine.clear_cache()
    assert model.cache_stats.held_tokens == 0 and model.engine.free_slots == POOL
    assert model.generate(PROMPTS[9], 1).cached_tokens == 0


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("start", [0, 1, 2, 9, 20])
def test_log_probabilities_are_of_the_rows_asked_for(
    model: archzoo.Model, plain: archzoo.Model, start: int, chunk: int | None
) -> None:
    ids = ids_of(20)
    model.generate(ids[:13], 1)
    spoil_free_slots(model)
    got = model.logprobs(ids, start=start, top_k=2, chunk_size=chunk)
    want = plain.logprobs(ids, start=start, top_k=2)
    assert got.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-9)
    assert [t and [i for i, _ in t] for t in got.top_logprobs] == [
        t and [i for i, _ in t] for t in want.top_logprobs
    ]
    assert model.cache_stats.cached_tokens == min(max(start - 1, 0), 13)


def spoil_free_slots(model: archzoo.Model) -> None:
    """NaN goes into the slots that are free now."""
    for runner in model.engine.runners:
        used = model.engine.lanes[runner.group_index].slots._used
        fill(runner, [slot for slot in range(POOL) if not used[slot]])


@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_logits_are_of_every_row_and_leave_them_to_others(
    model: archzoo.Model, plain: archzoo.Model, chunk: int | None
) -> None:
    ids = ids_of(20)
    model.generate(ids, 1)
    torch.testing.assert_close(model.logits(ids, chunk_size=chunk), plain.logits(ids))
    assert model.cache_stats.cached_tokens == 0
    model.logits([7, *ids], chunk_size=chunk)
    assert model.generate([7, *ids, 5], 1).cached_tokens == 21


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_vectors_of_prompts_that_are_partly_there(
    model: archzoo.Model, plain: archzoo.Model, chunk: int | None
) -> None:
    """Prompts begin at different places, some with nothing to do in a chunk."""
    ids = ids_of(24)
    model.generate(ids[:19], 1)
    prompts = [ids, [4], ids[:10], [3, *ids[:9]]]
    got = model.embed(prompts, normalize=False, chunk_size=chunk)
    torch.testing.assert_close(got, plain.embed(prompts, normalize=False))
    assert model.cache_stats.cached_tokens == 19 + 0 + 9 + 0
    torch.testing.assert_close(model.embed(prompts, normalize=False, chunk_size=chunk), got)


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.CLS])
def test_vectors_of_all_rows_take_none(
    model: archzoo.Model,
    plain: archzoo.Model,
    pooling: PoolingType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each in (model, plain):
        monkeypatch.setattr(each.module.pooler, "pooling", pooling)
    for _ in range(2):
        torch.testing.assert_close(model.embed(PROMPTS[:2]), plain.embed(PROMPTS[:2]))
    assert model.cache_stats.cached_tokens == model.cache_stats.prompt_tokens == 0


@pytest.mark.parametrize("topology", ["pp 2", "dp 2"])
def test_scores_of_prompts_that_begin_alike(tmp_path: Path, topology: str) -> None:
    reference = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=2)).eval()
    randomise(reference)
    save(reference, tmp_path)
    plain = archzoo.load(tmp_path, dtype=torch.float64, prefix_cache=False)
    model = archzoo.load(tmp_path, dtype=torch.float64, kv_slots=256, **TOPOLOGIES[topology])
    want = plain.classify(PROMPTS)
    for chunk in (None, 6, None):
        torch.testing.assert_close(model.classify(PROMPTS, chunk_size=chunk), want)
    assert model.cache_stats.hit_rate > 0.5
    assert model.engine.free_slots == 256


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "longrope", "original_max_position_embeddings": 16, "factor": 4.0}
        | {"short_factor": [1.0] * 4, "long_factor": [9.0] * 4},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_keys_that_turn_by_the_length_of_their_prompt_are_not_shared(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    """Up to 16 tokens all turn alike."""
    most = 64 if rope["rope_type"] == "longrope" else 16
    tiny_llama(tmp_path, max_position_embeddings=most, rope_parameters={**rope, "rope_theta": 1e4})
    plain, model = (
        archzoo.load(tmp_path, dtype=torch.float64, kv_slots=POOL, prefix_cache=on)
        for on in (False, True)
    )
    ids = ids_of(30)
    found = []
    for length in (10, 14, 17, 30, 16):
        assert model.generate(ids[:length], NEW, ignore_eos=True).token_ids == (
            plain.generate(ids[:length], NEW, ignore_eos=True).token_ids
        )
        found.append(model.generate(ids[:length], 1).cached_tokens)
        got, want = (each.logprobs(ids[:length], start=9) for each in (model, plain))
        assert got.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-9)
    assert found == [9, 13, 0, 0, 15]


def test_new_weights_forget_what_the_old_ones_computed(model: archzoo.Model, path: Path) -> None:
    model.generate(PROMPTS[5], 2)
    name = "model.embed_tokens.weight"
    new = {key: value for key, value in model.export_weights() if key == name}
    with pytest.raises(archzoo.errors.WeightError):
        model.update_weights({"no.such.weight": new[name]}.items())
    assert model.cache_stats.held_tokens, "a refused update changes nothing"
    model.update_weights([(name, new[name].flip(0))])
    assert model.cache_stats.held_tokens == 0
    assert model.generate(PROMPTS[5], 2).cached_tokens == 0


def test_the_cache_is_not_cleared_under_a_request(model: archzoo.Model) -> None:
    stream = model.generate(PROMPTS[5], 4, ignore_eos=True, stream=True)
    next(stream)
    with pytest.raises(InputError, match="requests that read it are under way"):
        model.engine.clear_cache()
    stream.close()
    model.engine.clear_cache()


def test_spoilt_keys_do_not_stay(model: archzoo.Model, answers: list[list[int]]) -> None:
    """Something wrote NaN where a prefix was cached: one request fails, the next one is right."""
    model.generate(PROMPTS[9], 1)
    for runner in model.engine.runners:
        fill(runner, range(POOL))
    with pytest.raises(LogitsError):
        model.generate(PROMPTS[9], NEW, ignore_eos=True)
    assert model.cache_stats.held_tokens == 0
    assert model.generate(PROMPTS[9], NEW, ignore_eos=True).token_ids == answers[9]


def test_a_scoring_pass_that_fails_leaves_what_it_had(
    model: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = Engine._run, iter((False, True))

    def run(self: Engine, *args: Any) -> Any:
        if next(calls, False):
            raise ZeroDivisionError
        return plain(self, *args)

    monkeypatch.setattr(Engine, "_run", run)
    with pytest.raises(ZeroDivisionError):
        model.logits(ids_of(12), chunk_size=5)
    check_slots(model)
    assert model.cache_stats.held_tokens == 5


def test_scoring_takes_cached_slots_when_no_other_is_free(model: archzoo.Model) -> None:
    model.logits([ids_of(40), ids_of(50)])
    assert model.engine.lanes[0].slots.free_slots == POOL - 90
    got = model.logits([ids_of(40, seed=3), ids_of(41, seed=4)])
    assert len(got) == 2
    check_slots(model)
    assert model.cache_stats.evicted_tokens > 0
