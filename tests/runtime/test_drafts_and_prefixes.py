"""Drafts and the prefix cache together: answers stay as they are, and no slot is lost in any pool."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runtime.drafts import all_free, load, write
from runtime.fake_model import cached_slots
from runtime.test_prefix_cache import free_slots_hold_nan

import archzoo
from archzoo.runtime import prefix_cache
from archzoo.runtime.engine import Engine
from archzoo.runtime.request import Request, SamplingParams
from archzoo.runtime.speculative.drafter import Drafter
from archzoo.runtime.speculative.pairing import make_drafter
from tiny import ids_of

NEW, POOL = 12, 90
PROMPTS = [[*ids_of(17, seed=7)[: 2 + 3 * (n % 6)], *ids_of(1 + n % 4, seed=n)] for n in range(12)]
"""Of 3 to 21 tokens, which begin alike."""
WAYS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 3, "top_k": 20})
"""The likeliest tokens, and drawn ones."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[list[list[int]]]:
    """What each prompt gets, each way, without cache and drafts."""
    plain = load(folder / "target", prefix_cache=False)
    results = [plain.generate(PROMPTS, NEW, ignore_eos=True, **way) for way in WAYS]
    return [[result.token_ids for result in each] for each in results]


class Streams:
    """Requests of one target at random, and what each must say."""

    def __init__(
        self, target: archzoo.Model, drafts: Sequence[archzoo.Model], answers: Any
    ) -> None:
        self.target, self.drafts, self.answers = target, drafts, answers
        self.draw = random.Random(5)
        self.drafters: list[Drafter] = []
        self.under_way: dict[Request, list[int]] = {}
        self.ended: list[Request] = []

    def begin(self) -> None:
        """Ask with any draft or none, drawn or not, and to the end or until some token comes."""
        at, way = self.draw.randrange(len(PROMPTS)), self.draw.randrange(len(WAYS))
        answer, stops = self.answers[way][at], []
        if self.draw.random() < 0.4:
            stops = [self.draw.choice(answer)]
            answer = answer[: answer.index(stops[0]) + 1]
        draft, drafter = self.draw.choice([None, *self.drafts]), None
        if draft is not None:
            drafter = make_drafter(self.target, draft, self.draw.randrange(1, 6))
            self.drafters.append(drafter)
        options = WAYS[way] | {"ignore_eos": True, "stop_token_ids": tuple(stops)}
        request = self.target._request(PROMPTS[at], SamplingParams(NEW, **options), drafter)
        self.under_way[self.target.engine.add(request)] = answer

    def score(self) -> None:
        """Let target or draft do something else with its pool."""
        prompt = self.draw.choice(PROMPTS)
        self.draw.choice([self.target, self.drafts[0]]).logprobs(prompt, start=len(prompt) - 1)

    def cancel(self) -> None:
        if self.under_way:
            self.target.engine.abort(self.draw.choice(list(self.under_way)))

    def check(self) -> None:
        """Each slot is free, or cached, or one request's, or one seat's; ends are right."""
        for model in {self.target, *self.drafts}:
            seats = [
                seat
                for drafter in self.drafters
                if drafter._engine is model.engine
                for seat in drafter._seats._taken.values()
                if seat is not None
            ]
            for at, lane in enumerate(model.engine.lanes):
                cached = cached_slots(lane.scheduler)
                held = [s for r in lane.scheduler.running for s in r.slots if s not in cached]
                held += [slot for seat in seats if seat.lane == at for slot in seat.slots]
                assert len(set(held)) == len(held)
                assert lane.slots.free_slots + len(cached) + len(held) == lane.slots.num_slots
        for request in [each for each in self.under_way if each.finished]:
            answer = self.under_way.pop(request)
            assert request.error is None
            given_up = request.finish_reason == "abort"
            assert request.output_ids == answer[: request.num_output if given_up else None]
            self.ended.append(request)


@pytest.mark.parametrize(("topology", "count"), [({}, 48), ({"tp": 2, "attn_dp": 2}, 12)])
def test_streams_with_every_kind_of_draft(
    folder: Path, answers: Any, topology: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most five at once, in pools for two or three; every ninth forward of any model fails."""
    target = load(folder / "target", kv_slots=POOL, max_requests=3, prefill_chunk=3, **topology)
    noise = load(folder / "noisy", kv_slots=POOL, max_requests=2)
    head = load(folder / "head", kv_slots=POOL, max_requests=3)
    monkeypatch.setattr(prefix_cache, "WORTH_WAITING", 5)
    run, forwards = Engine._run, [0]

    def failing(self: Engine, *args: Any) -> Any:
        forwards[0] += 1
        if forwards[0] % 9 == 0:
            raise ZeroDivisionError
        return run(self, *args)

    monkeypatch.setattr(Engine, "_run", failing)
    streams = Streams(target, [noise, target, head], answers)
    started = 0
    with free_slots_hold_nan(target), free_slots_hold_nan(noise), free_slots_hold_nan(head):
        while started < count or streams.under_way:
            if started < count and len(streams.under_way) < 5:
                streams.begin()
                started += 1
            try:
                target.engine.step()
                if streams.draw.random() < 0.1:
                    streams.score()
            except ZeroDivisionError:
                pass
            streams.check()
            if streams.draw.random() < 0.04:
                streams.cancel()
    ends = Counter(request.finish_reason for request in streams.ended)
    assert len(ends) == 3 and ends["abort"] < count / 3, ends
    assert all_free(target, noise, head)
    reports = [each.speculation.report for each in streams.ended if each.speculation is not None]
    assert sum(each.accepted for each in reports) > count / 2
    assert target.cache_stats.hit_rate > 0.2 and target.cache_stats.evicted_tokens > 0
