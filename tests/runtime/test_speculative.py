"""Speculative decoding with language models as drafts: equal tokens, fewer forwards, no leaks."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from runtime.drafts import PROMPTS, all_free, load, noisy, proposals, tokens, write

import archzoo
from archzoo.errors import InputError, LogitsError
from archzoo.forward import ForwardMode
from archzoo.runtime.choosing import end_unusable
from archzoo.runtime.engine import Engine
from archzoo.runtime.request import Request, SamplingParams
from archzoo.runtime.scheduler import Scheduler
from archzoo.runtime.slots import SlotAllocator
from archzoo.runtime.speculative.drafter import Drafter
from archzoo.runtime.speculative.state import Speculation
from archzoo.runtime.speculative.verifying import verified
from tiny import ids_of

COUNT = 24
"""New tokens of each prompt."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> archzoo.Model:
    return load(folder / "target")


@pytest.fixture(scope="module")
def noise(folder: Path) -> archzoo.Model:
    """A draft that is right about half the time."""
    return load(folder / "noisy")


@pytest.fixture(scope="module")
def other(folder: Path) -> archzoo.Model:
    """A draft that is hardly ever right."""
    return load(folder / "other")


def greedy(model: archzoo.Model, count: int = COUNT, **options: Any) -> Any:
    return model.generate(PROMPTS, count, ignore_eos=True, **options)


@pytest.fixture(scope="module")
def plain(target: archzoo.Model) -> list[list[int]]:
    """What the target says without a draft."""
    return tokens(greedy(target))


@pytest.mark.parametrize(
    ("proposal", "sampled", "stands"),
    [
        ([], [], []),
        ([], [4], [4]),
        ([5], [5, 6], [5, 6]),
        ([5, 7], [5, 6, 7], [5, 6]),
        ([5, 7], [6, 7, 8], [6]),
        ([5, 7, 9], [-1, 7, 9, 2], [-1]),
        ([5, 7, 9], [5, -1, 9, 2], [5]),
        ([5, 7, 9], [5, 7, 9, -1], [5, 7, 9]),
    ],
)
def test_what_stands(proposal: list[int], sampled: list[int], stands: list[int]) -> None:
    assert verified(proposal, sampled) == stands


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_the_target_as_its_own_draft_is_always_right(target: archzoo.Model, count: int) -> None:
    plain, drafted = greedy(target), greedy(target, draft=target, draft_tokens=count)
    assert tokens(drafted) == tokens(plain) and plain[0].speculation is None
    for result in drafted:
        report = result.speculation
        assert report.accepted == report.proposed and report.acceptance == 1
        assert report.target_forwards <= math.ceil(COUNT / (count + 1)) + 1
        assert report.accepted + report.target_forwards == COUNT, "not every token is accounted for"
    assert all_free(target)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_draft_that_is_sometimes_right(
    target: archzoo.Model, noise: archzoo.Model, count: int, plain: list[list[int]]
) -> None:
    drafted = greedy(target, draft=noise, draft_tokens=count)
    assert tokens(drafted) == plain
    rates = [result.speculation.acceptance for result in drafted]
    assert all(0 < rate < 1 for rate in rates) and len(set(rates)) > 1, rates
    assert all(r.speculation.accepted + r.speculation.target_forwards == COUNT for r in drafted)
    assert all_free(target, noise)


def test_a_draft_that_is_never_right_changes_nothing(
    target: archzoo.Model, other: archzoo.Model, plain: list[list[int]]
) -> None:
    drafted = greedy(target, draft=other)
    assert tokens(drafted) == plain
    assert sum(result.speculation.accepted for result in drafted) < 8


def test_the_draft_proposes_what_it_would_generate(
    target: archzoo.Model, noise: archzoo.Model
) -> None:
    """Its keys and values are those of the tokens that stand, whatever it expected before."""
    with proposals() as seen:
        greedy(target, 24, draft=noise, draft_tokens=3)
    assert len(seen) > 20
    for stood, proposed in seen:
        assert noise.generate(stood, len(proposed), ignore_eos=True).token_ids == proposed


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_the_limit_cuts_an_accepted_run(target: archzoo.Model, count: int) -> None:
    drafted = greedy(target, count, draft=target, draft_tokens=4)
    assert tokens(drafted) == tokens(greedy(target, count))
    assert [result.finish_reason for result in drafted] == ["length"] * len(PROMPTS)
    for result in drafted:
        report = result.speculation
        assert report.accepted + report.target_forwards == count, "proposed past the end"


@pytest.mark.parametrize("at", [1, 2, 3, 6, 7])
def test_a_stop_id_cuts_an_accepted_run(
    target: archzoo.Model, noise: archzoo.Model, at: int
) -> None:
    stops = sorted({result.token_ids[at] for result in greedy(target)})
    plain = greedy(target, stop_token_ids=stops)
    for draft in (target, noise):
        drafted = greedy(target, stop_token_ids=stops, draft=draft, draft_tokens=5)
        assert tokens(drafted) == tokens(plain)
        assert {result.finish_reason for result in drafted} == {"stop"}
        assert all_free(target, noise)


def test_the_end_of_the_context(folder: Path, tmp_path: Path, target: archzoo.Model) -> None:
    """The output ends where plain decoding ends; a draft with less context helps until there."""
    short = load(noisy(folder / "target", tmp_path / "short", 0.0, max_position_embeddings=40))
    plain = target.generate(PROMPTS, ignore_eos=True)
    assert [len(p) + len(r.token_ids) for p, r in zip(PROMPTS, plain, strict=True)] == [128] * 4
    for draft in (target, short):
        drafted = target.generate(PROMPTS, ignore_eos=True, draft=draft)
        assert tokens(drafted) == tokens(plain)
        if draft is short:
            reached = [
                len(p) + 1 + r.speculation.accepted for p, r in zip(PROMPTS, drafted, strict=True)
            ]
            assert all(20 < each <= 41 for each in reached[:2]), reached
    assert all_free(target, short)


def test_streaming_gives_the_same_pieces(target: archzoo.Model, noise: archzoo.Model) -> None:
    plain = greedy(target)
    found: list[list[int]] = [[] for _ in PROMPTS]
    longest = 0
    for chunk in greedy(target, stream=True, draft=noise):
        found[chunk.index] += chunk.token_ids
        longest = max(longest, len(chunk.token_ids))
        assert (chunk.speculation is None) == (chunk.finish_reason is None)
    assert found == tokens(plain) and longest > 1
    assert all_free(target, noise)


def test_a_stream_that_is_let_go_frees_both_pools(
    target: archzoo.Model, noise: archzoo.Model
) -> None:
    stream = greedy(target, stream=True, draft=noise)
    for _ in range(9):
        next(stream)
    assert not all_free(target) and not all_free(noise)
    stream.close()
    assert all_free(target, noise)


def test_requests_with_several_drafts_and_none_run_together(
    target: archzoo.Model, noise: archzoo.Model, other: archzoo.Model
) -> None:
    plain = tokens(greedy(target))
    streams = [
        greedy(target, stream=True),
        greedy(target, stream=True, draft=noise, draft_tokens=2),
        greedy(target, stream=True, draft=other),
        greedy(target, stream=True, draft=target, draft_tokens=7),
    ]
    found: list[list[list[int]]] = [[[] for _ in PROMPTS] for _ in streams]
    waiting = list(range(len(streams)))
    while waiting:
        for at in list(waiting):
            chunk = next(streams[at], None)
            if chunk is None:
                waiting.remove(at)
            else:
                found[at][chunk.index] += chunk.token_ids
    assert found == [plain] * len(streams)
    assert all_free(target, noise, other)


@pytest.mark.parametrize("chunk", [1, 4])
def test_prompts_in_chunks(
    folder: Path, noise: archzoo.Model, chunk: int, plain: list[list[int]]
) -> None:
    target = load(folder / "target", prefill_chunk=chunk)
    drafted = greedy(target, draft=noise)
    assert tokens(drafted) == plain
    for prompt, result in zip(PROMPTS, drafted, strict=True):
        chunks = math.ceil(len(prompt) / chunk)
        assert (
            result.speculation.accepted + result.speculation.target_forwards == COUNT - 1 + chunks
        )


@pytest.mark.parametrize("slots", [55, 90])
def test_a_pool_too_small_for_all(
    folder: Path, target: archzoo.Model, noise: archzoo.Model, slots: int
) -> None:
    """Requests are put back and computed again; drafts get out of the way."""
    plain = tokens(greedy(target))
    tight = load(folder / "target", kv_slots=slots)
    small = load(folder / "noisy", kv_slots=40)
    for draft in (noise, small, tight):
        assert tokens(greedy(tight, draft=draft)) == plain
        assert all_free(tight, noise, small)


def test_a_draft_that_is_asked_itself_has_its_whole_pool(
    folder: Path, target: archzoo.Model, noise: archzoo.Model, plain: list[list[int]]
) -> None:
    """Seats of another model's requests fill its pool: they leave for its own work."""
    small = load(folder / "noisy", kv_slots=48)
    ids = ids_of(30, seed=5)
    for ask in (
        lambda model: model.generate(ids, 18, ignore_eos=True).token_ids,
        lambda model: model.logits([*ids, *ids[:18]]).argmax(-1).tolist(),
    ):
        stream = greedy(target, stream=True, draft=small)
        chunks = [next(stream) for _ in range(8)]
        assert small.engine.free_slots < 30
        assert ask(small) == ask(noise)
        found: list[list[int]] = [[] for _ in PROMPTS]
        for chunk in [*chunks, *stream]:
            found[chunk.index] += chunk.token_ids
        assert found == plain and all_free(target, small)


def test_seats_in_the_pool_of_another_group(folder: Path, plain: list[list[int]]) -> None:
    """A model drafts for itself: what one group's requests hold in the other's pool gives way."""
    model = load(folder / "target", kv_slots=40, tp=2, attn_dp=2)
    options: dict[str, Any] = {"ignore_eos": True, "stream": True, "draft": model}
    first = model.generate(ids_of(4, seed=5), 30, **options)
    for _ in range(6):
        next(first)
    assert model.engine.lanes[1].slots.available < 30
    second = model.generate(PROMPTS[2], 9, **options)
    assert [token for chunk in second for token in chunk.token_ids] == plain[2][:9]
    assert sum(len(chunk.token_ids) for chunk in first) < 30
    assert all_free(model)


def test_guesses_leave_others_their_next_slot(folder: Path, other: archzoo.Model) -> None:
    """A slot for a guess is never taken from a token that is sure to be wanted."""
    model = load(folder / "target", kv_slots=22)
    (lane,) = model.engine.lanes
    options: dict[str, Any] = {"draft": other, "draft_tokens": 16, "stream": True}
    long = model.generate(ids_of(4), 18, ignore_eos=True, **options)
    short = model.generate(ids_of(4, seed=2), 5, ignore_eos=True, **options)
    both = lane.scheduler.waiting
    for _ in long:
        assert not lane.scheduler.waiting, "a request was put back for another one's guesses"
        assert all(len(each.slots) <= len(each.tokens) for each in both), "a guess keeps its slot"
    assert [len(chunk.token_ids) for chunk in short] == [5]
    assert all_free(model, other)


def test_rows_of_one_step_stay_within_their_limit(
    folder: Path, target: archzoo.Model, noise: archzoo.Model
) -> None:
    model = load(folder / "target")
    (lane,) = model.engine.lanes
    lane.scheduler.max_batch_tokens = 10
    most: list[int] = []
    plain = Engine._run

    def run(self: Engine, steps: Any, wanted: Any) -> Any:
        if self is model.engine:
            most.append(len(steps[0].input_ids))
        return plain(self, steps, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_run", run)
        drafted = greedy(model, draft=noise, draft_tokens=9)
    assert tokens(drafted) == tokens(greedy(target))
    assert max(most) == 10


def test_modes_of_the_forwards(target: archzoo.Model, noise: archzoo.Model) -> None:
    modes: dict[int, list[ForwardMode]] = {}
    plain = Engine._run

    def run(self: Engine, steps: Any, wanted: Any) -> Any:
        modes.setdefault(id(self), []).append(steps[0].mode)
        return plain(self, steps, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_run", run)
        greedy(target, 8, draft=noise, draft_tokens=2)
    big, small = modes[id(target.engine)], modes[id(noise.engine)]
    assert big[0] is ForwardMode.EXTEND and ForwardMode.TARGET_VERIFY in big
    assert set(small) == {ForwardMode.DRAFT_EXTEND, ForwardMode.DECODE}
    assert small[:2] == [ForwardMode.DRAFT_EXTEND, ForwardMode.DECODE]


def test_a_forward_that_fails_is_done_again(target: archzoo.Model, noise: archzoo.Model) -> None:
    plain, calls = Engine._run, 0

    def run(self: Engine, steps: Any, wanted: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise OSError("no")
        return plain(self, steps, wanted)

    want = tokens(greedy(target))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_run", run)
        stream = greedy(target, stream=True, draft=noise)
        requests = [request for lane in target.engine.lanes for request in lane.scheduler.waiting]
        while not all(request.finished for request in requests):
            try:
                target.engine.step()
            except OSError:
                continue
    assert [request.output_ids for request in requests] == want
    stream.close()
    assert all_free(target, noise)


def test_a_seed_draws_the_tokens_of_plain_sampling(
    target: archzoo.Model, noise: archzoo.Model
) -> None:
    options = {"temperature": 1.2, "seed": 5, "top_k": 40, "top_p": 0.95}
    plain = greedy(target, **options)
    for draft in (target, noise):
        drafted = greedy(target, draft=draft, **options)
        assert tokens(drafted) == tokens(plain)
        rate = sum(r.speculation.accepted for r in drafted) / sum(
            r.speculation.proposed for r in drafted
        )
        assert rate == 1 if draft is target else 0 < rate < 1


def test_drawn_tokens_have_the_targets_distribution(
    target: archzoo.Model, noise: archzoo.Model
) -> None:
    """Frequencies of the second and third token, which the draft proposes, over 500 seeds."""
    prompt, options = ids_of(4), {"temperature": 1.0, "top_k": 2, "ignore_eos": True}
    drawn = target.generate([prompt] * 500, 3, draft=noise, draft_tokens=2, **options)
    assert 0.2 < sum(r.speculation.accepted for r in drawn) / 500 < 1.9
    want: Counter[tuple[int, ...]] = Counter()
    for first, p in likely(target, prompt):
        for second, q in likely(target, [*prompt, first]):
            for third, r in likely(target, [*prompt, first, second]):
                want[first, second, third] = p * q * r
    seen = Counter(tuple(result.token_ids) for result in drawn)
    assert set(seen) <= set(want)
    chi = sum((seen[each] - 500 * p) ** 2 / (500 * p) for each, p in want.items())
    # 7 degrees of freedom: 28 is passed by chance once in 4,000.
    assert chi < 28, (chi, seen, want)


def likely(model: archzoo.Model, ids: list[int]) -> list[tuple[int, float]]:
    top = model.logits(ids)[-1].double().softmax(-1).topk(2)
    return list(zip(top.indices.tolist(), (top.values / top.values.sum()).tolist(), strict=True))


def test_a_draft_with_nothing_to_say_ends_its_requests_alone(
    folder: Path, target: archzoo.Model, plain: list[list[int]]
) -> None:
    broken = load(folder / "other")
    for runner in broken.engine.runners:
        runner.module.model.norm.weight.data.fill_(torch.nan)
    beside = greedy(target, stream=True)
    with pytest.raises(LogitsError, match="the draft of request"):
        greedy(target, draft=broken)
    found: list[list[int]] = [[] for _ in PROMPTS]
    for chunk in beside:
        found[chunk.index] += chunk.token_ids
    assert found == plain
    assert all_free(target, broken)


def test_only_rows_that_stand_can_end_a_request(target: archzoo.Model) -> None:
    """What follows a wrong guess may hold anything."""
    scheduler = Scheduler(SlotAllocator(64), 3, 64, None, 64)
    requests = [scheduler.add(Request(ids_of(4), SamplingParams(9))) for _ in range(3)]
    first = scheduler.next_step()
    assert first is not None
    scheduler.finish_step(first, [5, 6, 7])
    drafter = Drafter(target.engine, 2, False)
    for request in requests:
        request.speculation = Speculation(drafter, [8, 9])
    step = scheduler.next_step()
    assert step is not None and step.samples == [3, 3, 3]
    sampled = [3, -1, -1, -1, 9, 4, 8, 9, -1]
    with mock.patch.object(drafter, "give_up", wraps=drafter.give_up) as given_up:
        end_unusable(scheduler, step, sampled, scheduler.members(step))
    assert given_up.mock_calls == [mock.call(requests[1])]
    assert [request.finish_reason for request in requests] == [None] * 3
    scheduler.finish_step(step, sampled)
    assert [request.output_ids for request in requests] == [[5, 3], [6], [7, 8, 9]]
    assert [request.computed for request in requests] == [5, 4, 6]
    alone = scheduler.next_step()
    assert alone is not None and alone.samples == [1, 1, 1]
    end_unusable(scheduler, alone, [4, -1, 4], scheduler.members(alone))
    assert [request.finish_reason for request in requests] == [None, "abort", None]
    assert isinstance(requests[1].error, LogitsError) and "request 1 hold" in str(requests[1].error)


def test_slots_of_a_cancelled_proposal_are_given_back(target: archzoo.Model) -> None:
    scheduler = Scheduler(SlotAllocator(64), 1, 64, None, 64)
    request = scheduler.add(Request(ids_of(4), SamplingParams(9)))
    first = scheduler.next_step()
    assert first is not None
    scheduler.finish_step(first, [5])
    request.speculation = Speculation(Drafter(target.engine, 2, False), [8, 9])
    cancelled = scheduler.next_step()
    assert cancelled is not None and len(request.slots) == 7
    scheduler.cancel_step(cancelled)
    request.speculation.proposal = []
    again = scheduler.next_step()
    assert again is not None
    scheduler.finish_step(again, [6])
    assert len(request.slots) == len(request.tokens) == 6


@pytest.mark.parametrize("spoilt", ["target", "draft"])
def test_rows_behind_a_stop_may_hold_anything(
    folder: Path, target: archzoo.Model, plain: list[list[int]], spoilt: str
) -> None:
    """A stop id with NaN for an embedding: plain decoding never computes it, guesses go past it."""
    at, (answer, *_) = 3, plain
    assert answer[at] not in [*answer[:at], *PROMPTS[0]]
    broken = load(folder / "target")
    for runner in broken.engine.runners:
        runner.module.model.embed_tokens.weight.data[answer[at]] = torch.nan
    one, draft = (broken, target) if spoilt == "target" else (target, broken)
    options: dict[str, Any] = {"ignore_eos": True, "draft": draft, "draft_tokens": 5}
    drafted = one.generate(PROMPTS[0], COUNT, stop_token_ids=answer[at], **options)
    assert (drafted.token_ids, drafted.finish_reason) == (answer[: at + 1], "stop")
    with pytest.raises(LogitsError, match="the draft of" if spoilt == "draft" else "request"):
        one.generate(PROMPTS[0], COUNT, **options)
    assert all_free(target, broken)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"draft": "foreign"}, "vocabulary of 131 tokens, its target one of 130"),
        ({"draft": "target", "draft_tokens": 0}, "draft_tokens=0 must be an integer in 1…"),
        ({"draft": "target", "draft_tokens": 2**63}, r"draft_tokens=\d+ must be an integer in 1…"),
        ({"draft": "target", "draft_tokens": True}, "draft_tokens=True"),
        ({"draft": "target", "draft_tokens": 2.5}, "draft_tokens=2.5"),
        ({"draft_tokens": 3}, "draft_tokens=3 without a draft"),
    ],
    ids=str,
)
def test_drafts_that_do_not_fit_are_refused(
    folder: Path, target: archzoo.Model, options: dict[str, Any], problem: str
) -> None:
    if "draft" in options:
        options = options | {"draft": load(folder / options["draft"])}
    with pytest.raises(InputError, match=problem):
        greedy(target, **options)
    assert all_free(target)


def test_a_backbone_is_no_draft(target: archzoo.Model, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    from tiny import SIZES, randomise, save

    backbone = LlamaModel(LlamaConfig(**SIZES)).eval()
    randomise(backbone)
    with pytest.raises(InputError, match="LlamaModel is .*; a draft is a language model"):
        greedy(target, draft=load(save(backbone, tmp_path)))


def test_one_request_at_a_time(folder: Path, target: archzoo.Model, plain: list[list[int]]) -> None:
    alone = load(folder / "target", max_requests=1)
    drafted = greedy(alone, draft=alone)
    assert tokens(drafted) == plain
    assert all(result.speculation.acceptance == 1 for result in drafted)


def test_more_requests_than_the_draft_has_rows_for(
    folder: Path, target: archzoo.Model, plain: list[list[int]]
) -> None:
    """Those without a seat go on alone."""
    draft = load(folder / "target", max_requests=2)
    drafted = greedy(target, draft=draft)
    assert tokens(drafted) == plain
    assert sorted(r.speculation.proposed > 0 for r in drafted) == [False, False, True, True]
