"""Scheduler: against a fake model that reads its keys from a pool, as attention does."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from calls import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.fake_model import VOCAB, FakeModel, alone

from archzoo.errors import CapacityError, InputError
from archzoo.forward import ForwardMode
from archzoo.runtime.prefix_cache import PrefixCache
from archzoo.runtime.request import Request, RequestState, SamplingParams
from archzoo.runtime.scheduler import Scheduler
from archzoo.runtime.slots import SlotAllocator
from archzoo.runtime.step import Step


def build(
    slots: int = 64,
    requests: int = 4,
    context: int = 64,
    chunk: int | None = None,
    rows: int = 32,
    shared: int = 0,
    turning: int | None = None,
) -> tuple[Scheduler, FakeModel]:
    allocator = SlotAllocator(slots)
    cache = PrefixCache(allocator, shared)
    scheduler = Scheduler(
        allocator, requests, context, chunk, rows, cache=cache, recompute_after=turning
    )
    return scheduler, FakeModel(scheduler, requests, context, turning)


def ask(
    scheduler: Scheduler, prompt: Sequence[int], new: int | None = 4, **more: object
) -> Request:
    return scheduler.add(Request(prompt, SamplingParams(new, **more)))  # type: ignore[arg-type]  # by name


def test_one_request() -> None:
    scheduler, model = build()
    request = ask(scheduler, [1, 2, 3], 4)
    model.run()
    assert request.output_ids == alone([1, 2, 3], 4)
    assert request.finish_reason == "length"
    assert [step.mode for step in model.steps] == [ForwardMode.EXTEND] + [ForwardMode.DECODE] * 3
    assert [step.extend_lens for step in model.steps] == [[3], [1], [1], [1]]
    assert [step.positions for step in model.steps] == [[0, 1, 2], [3], [4], [5]]
    assert [step.new_slots for step in model.steps] == [[0, 1, 2], [3], [4], [5]]
    assert scheduler.slots.available == 64 and not scheduler.has_work


def test_a_one_token_prompt_is_an_extend() -> None:
    scheduler, model = build()
    request = ask(scheduler, [9], 1)
    model.run()
    assert [step.mode for step in model.steps] == [ForwardMode.EXTEND]
    assert request.output_ids == alone([9], 1)


def test_no_request_no_step() -> None:
    scheduler, _ = build()
    assert scheduler.next_step() is None
    assert not scheduler.has_work


def test_requests_join_and_leave_between_steps() -> None:
    scheduler, model = build()
    first = ask(scheduler, [1, 2], 6)
    model.step()
    model.step()
    second = ask(scheduler, [3, 4, 5], 2)
    model.step()
    assert model.steps[-1].mode is ForwardMode.MIXED
    assert model.steps[-1].request_ids == [0, 1], "decode rows come first"
    assert model.steps[-1].sample_rows == [0, 3]
    model.run()
    assert second.output_ids == alone([3, 4, 5], 2)
    assert first.output_ids == alone([1, 2], 6)
    assert second.finish_reason == first.finish_reason == "length"


def test_a_long_prompt_comes_in_chunks_and_samples_once() -> None:
    scheduler, model = build(chunk=3)
    request = ask(scheduler, list(range(8)), 2)
    model.run()
    assert [step.extend_lens for step in model.steps] == [[3], [3], [2], [1]]
    assert [step.samples for step in model.steps] == [[False], [False], [True], [True]]
    assert [step.sample_rows for step in model.steps] == [[], [], [1], [0]]
    assert request.output_ids == alone(list(range(8)), 2)


def test_the_row_budget_is_shared() -> None:
    scheduler, model = build(rows=5)
    requests = [ask(scheduler, [n] * 4, 2) for n in range(3)]
    model.run()
    assert model.steps[0].extend_lens == [4, 1]
    assert model.steps[1].extend_lens == [1, 3, 1], "decode first, then the rest of the prompt"
    assert [r.output_ids for r in requests] == [alone([n] * 4, 2) for n in range(3)]


def test_decode_slots_follow_the_prompt() -> None:
    scheduler, model = build()
    ask(scheduler, [1, 2, 3], 5)
    ask(scheduler, [4, 5], 5)
    for _ in range(4):
        model.step()
    assert [request.slots for request in scheduler.running] == [list(range(6)), [7, 8, 9, 10, 11]]


def test_admission_waits_for_slots_in_order_of_arrival() -> None:
    scheduler, model = build(slots=10)
    ask(scheduler, [1] * 6, 3)
    big = ask(scheduler, [2] * 5, 3)
    small = ask(scheduler, [3], 1)
    model.step()
    assert [r.request_id for r in scheduler.running] == [0]
    assert big.state is small.state is RequestState.WAITING, "the small one may not overtake"
    model.run()
    assert big.output_ids == alone([2] * 5, 3)
    assert small.output_ids == alone([3], 1)


def test_admission_leaves_running_requests_their_next_slot() -> None:
    scheduler, model = build(slots=10)
    ask(scheduler, [1] * 6, 4)
    model.step()
    second = ask(scheduler, [2] * 3, 2)
    model.run()
    assert [step.extend_lens for step in model.steps] == [[6], [1], [1], [1], [3], [1]]
    assert second.output_ids == alone([2] * 3, 2)


def test_admission_waits_for_a_row_of_the_table() -> None:
    scheduler, model = build(requests=2)
    requests = [ask(scheduler, [n], 3) for n in range(5)]
    while scheduler.has_work:
        assert model.step()
        assert len(model.steps[-1].request_ids) <= 2
    assert [r.output_ids for r in requests] == [alone([n], 3) for n in range(5)]


def test_the_youngest_is_preempted_and_its_output_stays_equal() -> None:
    scheduler, model = build(slots=12)
    old = ask(scheduler, [1, 2, 3], 9)
    young = ask(scheduler, [4, 5, 6], 9)
    preempted = False
    while scheduler.has_work:
        model.step()
        preempted |= young.state is RequestState.WAITING
        assert old.state is not RequestState.WAITING
    assert preempted
    assert old.output_ids == alone([1, 2, 3], 9)
    assert young.output_ids == alone([4, 5, 6], 9)
    redone = [step for step in model.steps if step.request_ids == [1] and step.extend_lens[0] > 3]
    assert len(redone) == 1, "recomputed once, after the old one has ended"
    assert redone[0].mode is ForwardMode.EXTEND


def test_the_youngest_makes_room_for_one_that_begins_again() -> None:
    """Past 6 tokens all keys turn otherwise; the older request has them made in its place."""
    scheduler, model = build(slots=15, turning=6)
    prompts = [1, 2, 3, 4, 5, 6], [7] * 8
    old, young = (ask(scheduler, prompt, 3) for prompt in prompts)
    model.step()
    model.step()
    assert scheduler.running == (old,) and scheduler.waiting == (young,)
    model.run()
    assert [r.output_ids for r in (old, young)] == [alone(prompt, 3) for prompt in prompts]
    rows = [list(zip(s.request_ids, s.extend_lens, strict=True)) for s in model.steps]
    assert rows[:3] == [[(0, 6), (1, 8)], [(0, 7)], [(0, 1)]]


def test_a_request_that_exactly_fills_the_pool() -> None:
    scheduler, model = build(slots=8, context=8)
    request = ask(scheduler, [1] * 5, 3)
    model.run()
    assert request.output_ids == alone([1] * 5, 3)


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    scheduler, _ = build(slots=8, context=20)
    with pytest.raises(CapacityError, match=r"5 prompt tokens \+ 4 new = 9, more than the 8 slots"):
        ask(scheduler, [1] * 5, 4)
    with pytest.raises(InputError, match=r"5 prompt tokens \+ 16 new = 21, more than .* 20"):
        ask(scheduler, [1] * 5, 16)
    with pytest.raises(CapacityError, match=r"8 prompt tokens \+ 1 new = 9"):
        ask(scheduler, [1] * 8, None)
    assert not scheduler.has_work


@pytest.mark.parametrize(("slots", "context"), [(10, 7), (7, 10)])
def test_without_a_limit_a_request_runs_to_the_end_of_context_or_pool(
    slots: int, context: int
) -> None:
    scheduler, model = build(slots=slots, context=context)
    request = ask(scheduler, [1, 2], None)
    model.run()
    assert request.output_ids == alone([1, 2], 5)
    assert request.finish_reason == "length"


def test_end_ids_end_it() -> None:
    eos = frozenset(range(0, VOCAB, 3))
    scheduler, model = build()
    request = scheduler.add(Request([1, 2], SamplingParams(30), eos_ids=eos))
    model.run()
    assert request.output_ids == alone([1, 2], 30, eos)
    assert request.finish_reason == "stop"


def test_abort_in_every_state() -> None:
    scheduler, model = build(requests=1)
    running, waiting = ask(scheduler, [1, 2], 5), ask(scheduler, [3], 2)
    model.step()
    scheduler.abort(waiting)
    scheduler.abort(running)
    assert running.finish_reason == waiting.finish_reason == "abort"
    assert scheduler.slots.available == 64 and not scheduler.has_work
    scheduler.abort(running)
    later = ask(scheduler, [5], 2)
    model.run()
    scheduler.abort(later)
    assert later.finish_reason == "length", "finished stays finished"
    with pytest.raises(InputError, match="not of this scheduler"):
        scheduler.abort(Request([1], SamplingParams(1)))


def test_abort_while_a_step_is_under_way() -> None:
    scheduler, model = build()
    first, second = ask(scheduler, [1, 2], 3), ask(scheduler, [3, 4], 3)
    step = scheduler.next_step()
    assert step is not None
    assert scheduler.members(step) == [first, second]
    scheduler.abort(first)
    assert scheduler.finish_step(step, model.logits(step)) == []
    assert first.output_ids == []
    model.run()
    assert second.output_ids == alone([3, 4], 3)
    assert scheduler.slots.available == 64


def test_a_cancelled_step_is_planned_again() -> None:
    scheduler, model = build()
    request = ask(scheduler, [1, 2], 3)
    for _ in range(3):
        step = scheduler.next_step()
        assert step is not None
        scheduler.cancel_step(step)
        model.step()
        assert model.steps[-1] == step
    assert request.output_ids == alone([1, 2], 3)


def test_finish_step_tells_who_ended() -> None:
    scheduler, model = build()
    short, _ = ask(scheduler, [1], 1), ask(scheduler, [2], 2)
    step = scheduler.next_step()
    assert step is not None
    assert scheduler.finish_step(step, model.logits(step)) == [short]


def test_steps_out_of_turn_are_refused() -> None:
    scheduler, _ = build()
    ask(scheduler, [1], 2)
    step = scheduler.next_step()
    assert step is not None
    with pytest.raises(InputError, match="under way"):
        scheduler.next_step()
    with pytest.raises(InputError, match="2 tokens for 1 rows"):
        scheduler.finish_step(step, [1, 2])
    with pytest.raises(InputError, match="not the one under way"):
        scheduler.finish_step(Step(), [])
    scheduler.finish_step(step, [1])
    for late in (scheduler.cancel_step, scheduler.members):
        with pytest.raises(InputError, match="not the one under way"):
            late(step)


def test_a_request_is_added_once() -> None:
    scheduler, _ = build()
    request = ask(scheduler, [1])
    with pytest.raises(InputError, match="added before"):
        scheduler.add(request)


@pytest.mark.parametrize(
    ("requests", "context", "chunk", "rows"),
    [(0, 8, None, 8), (2, 0, None, 8), (2, 8, 0, 8), (2, 8, None, 1)],
)
def test_limits_that_make_no_sense(
    requests: int, context: int, chunk: int | None, rows: int
) -> None:
    with pytest.raises(InputError, match="max_requests"):
        Scheduler(SlotAllocator(8), requests, context, chunk, rows)


def test_slots_held_elsewhere_are_an_error_and_not_a_loop() -> None:
    allocator = SlotAllocator(8)
    scheduler = Scheduler(allocator, 2, 8, None, 8)
    theirs = allocator.alloc(6)
    ask(scheduler, [1, 2, 3], 2)
    with pytest.raises(CapacityError, match="needs 3 slots, 2 of 8 are free"):
        scheduler.next_step()
    allocator.free(theirs)
    assert scheduler.next_step() is not None


def test_slots_wanted_outside_cost_a_request_one_turn_for_each_token() -> None:
    """So it ends, though somebody wants its slots after each chunk of its prompt."""
    scheduler, model = build(chunk=2)
    first, second = ask(scheduler, [1, 2, 3, 4, 5], 3), ask(scheduler, [6, 7], 2)
    for _ in range(40):
        model.step()
        while scheduler.put_back(force=False):
            pass
    assert first.output_ids == alone([1, 2, 3, 4, 5], 3)
    assert second.output_ids == alone([6, 7], 2)
    ask(scheduler, [1, 2, 3, 4, 5], 3)
    model.step()
    assert scheduler.put_back(force=False) and not scheduler.put_back(force=True)
    model.step()
    assert not scheduler.put_back(force=False) and scheduler.put_back(force=True)
    assert scheduler.slots.available == 64


def test_a_request_put_back_for_slots_held_elsewhere_comes_again() -> None:
    allocator = SlotAllocator(4)
    scheduler = Scheduler(allocator, 1, 4, None, 4)
    model = FakeModel(scheduler, 1, 4)
    request = ask(scheduler, [1, 2], 2)
    model.step()
    theirs = allocator.alloc(2)
    with pytest.raises(CapacityError, match="needs 3 slots"):
        scheduler.next_step()
    allocator.free(theirs)
    model.run()
    assert request.output_ids == alone([1, 2], 2)


def test_a_step_is_plain_data() -> None:
    scheduler, _ = build()
    ask(scheduler, [1, 2], 2)
    step = scheduler.next_step()
    assert pickle.loads(pickle.dumps(step)) == step


def test_a_decode_step_costs_a_few_calls_for_a_request() -> None:
    scheduler, _ = build(slots=64 * 300, requests=64, context=300, rows=64)
    for n in range(64):
        ask(scheduler, [n], 250)

    def take_step() -> None:
        step = scheduler.next_step()
        assert step is not None
        scheduler.finish_step(step, [1] * sum(step.samples))

    counts = [calls_of(take_step) for _ in range(100)]
    assert counts[1] / 64 < 100, f"{counts[1] / 64:.1f} calls for each request"
    assert counts[-1] == counts[1], "a longer output costs more"


WORK = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.integers(1, 12),
        st.integers(0, 6),  # steps before it arrives
        st.one_of(st.none(), st.integers(0, 12)),  # steps before it is aborted
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(
    work=WORK,
    slots=st.integers(24, 40),
    requests=st.integers(1, 5),
    chunk=st.one_of(st.none(), st.integers(1, 6)),
    spare_rows=st.integers(0, 12),
    cancel=st.integers(2, 9),
    shared=st.sampled_from((0, 5, 24)),
    turning=st.sampled_from((None, 6, 11)),
)
def test_every_request_gets_what_it_would_get_alone(
    work: list[tuple[list[int], int, int, int | None]],
    slots: int,
    requests: int,
    chunk: int | None,
    spare_rows: int,
    cancel: int,
    shared: int,
    turning: int | None,
) -> None:
    """With a prefix cache or without; where long sequences turn otherwise, no key is of both."""
    shared = min(shared, turning or shared)
    scheduler, model = build(slots, requests, 24, chunk, requests + spare_rows, shared, turning)
    added: list[tuple[Request, int | None]] = []
    todo = sorted(work, key=lambda entry: entry[2])
    clock = 0
    while todo or scheduler.has_work:
        while todo and todo[0][2] <= clock:
            prompt, new, _, abort = todo.pop(0)
            added.append((ask(scheduler, prompt, new), abort))
        for request, abort in added:
            if abort == clock:
                scheduler.abort(request)
        if clock % cancel == 0 and (step := scheduler.next_step()):
            scheduler.cancel_step(step)
        progressed = model.step()
        assert progressed or not scheduler.has_work
        clock += 1
    for request, _ in added:
        expected = alone(request.prompt_ids, request.params.max_new_tokens or 0)
        if request.finish_reason == "abort":
            assert request.output_ids == expected[: request.num_output]
        else:
            assert request.finish_reason == "length"
            assert request.output_ids == expected
        assert request.slots == [] and request.req_pool_index == -1
        assert request.lease is None
    assert scheduler.slots.available == slots
    assert sorted(scheduler.slots.alloc(slots)) == list(range(slots))
