"""The recorded schedule of a pipeline: stages are busy at once, and nothing else changes."""

from __future__ import annotations

import pytest
from runtime.pipelines import PROMPTS, VOCAB, Checkpoints, close, load

import archzoo
from archzoo.runtime.pipeline import StageEvent
from tiny import ids_of

Pair = tuple[archzoo.Model, archzoo.Model]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def pair(checkpoints: Checkpoints) -> tuple[archzoo.Model, archzoo.Model]:
    """One rank, and six ranks in two stages with micro-batches."""
    path = checkpoints("tied")[0]
    return load(path), load(path, tp=3, pp=2, pp_micro_batches=4)


def timeline(events: list[StageEvent], stages: int) -> list[dict[int, int]]:
    """What each stage works on in each unit of time, if every stage had a machine of its own.

    Replays each stage's own order of actions. Running takes one unit; handing over none, but the
    giver waits for the taker. So a stage that waits for more than it must shows as idle.
    """
    queues = [[e for e in events if e.stage == stage] for stage in range(stages)]
    clock, busy = [0] * stages, [dict[int, int]() for _ in range(stages)]
    while any(queues):
        before = [len(queue) for queue in queues]
        for stage, queue in enumerate(queues):
            if queue and queue[0].action == "run":
                busy[stage][clock[stage]] = queue.pop(0).micro_batch
                clock[stage] += 1
            elif (
                queue
                and queue[0].action == "give"
                and queues[stage + 1][:1] == [StageEvent(stage + 1, "take", queue[0].micro_batch)]
            ):
                queue.pop(0), queues[stage + 1].pop(0)
                clock[stage] = clock[stage + 1] = max(clock[stage : stage + 2])
        assert [len(queue) for queue in queues] != before, f"the schedule hangs: {queues}"
    return busy


@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_two_stages_are_busy_at_once_with_four_micro_batches(pair: Pair, decode: bool) -> None:
    one, many = pair
    prompts = [ids_of(4, VOCAB, seed=n) for n in range(4)]
    if decode:
        want = one.generate(prompts, max_new_tokens=2, ignore_eos=True)
        submitted = many.generate(prompts, max_new_tokens=2, ignore_eos=True, stream=True)
        got = [next(submitted)]
        with many.engine.recording() as events:
            many.engine.step()
        got += list(submitted)
        for at, result in enumerate(want):
            assert [t for p in got if p.index == at for t in p.token_ids] == result.token_ids
    else:
        with many.engine.recording() as events:
            got_logits = many.logits(prompts)
        close(got_logits, one.logits(prompts))
    first, last = timeline(one_rank_of_each_stage(events, tp=3), 2)
    assert first == {0: 0, 1: 1, 2: 2, 3: 3}
    assert last == {1: 0, 2: 1, 3: 2, 4: 3}, "one unit behind, and never idle in between"
    assert len(set(first) & set(last)) == 3, "units in which both stages are busy"


def one_rank_of_each_stage(events: list[StageEvent], tp: int) -> list[StageEvent]:
    """All tp ranks of a stage do the same; keep one's record."""
    kept = list(dict.fromkeys(events))
    assert all(events.count(event) == tp for event in kept)
    return kept


def test_three_stages_fill_and_drain(checkpoints: Checkpoints) -> None:
    model = load(checkpoints("fused")[0], pp=3, pp_micro_batches=5)
    with model.engine.recording() as events:
        model.logits(PROMPTS[0])
    busy = timeline(events, 3)
    assert busy == [{stage + at: at for at in range(5)} for stage in range(3)]


def test_one_micro_batch_leaves_the_other_stage_idle(pair: Pair) -> None:
    """What the record would show without micro-batches; nothing is recorded outside."""
    with pair[1].engine.recording() as events:
        pair[1].logits(PROMPTS[1])
    first, last = timeline(one_rank_of_each_stage(events, tp=3), 2)
    assert (first, last) == ({0: 0}, {1: 0})
    seen = len(events)
    pair[1].logits(PROMPTS[1])
    assert len(events) == seen


def test_long_prompts_make_micro_batches_by_themselves(
    checkpoints: Checkpoints,
) -> None:
    model = load(checkpoints("tied")[0], pp=2, kv_slots=600)
    prompts = [ids_of(100, VOCAB, seed=n) for n in range(4)]
    with model.engine.recording() as events:
        got = model.logits(prompts)
    first, last = timeline(events, 2)
    assert len(first) == 400 // 128 and set(first) & set(last)
    close(got, load(checkpoints("tied")[0], kv_slots=600).logits(prompts))
