"""Threads that call one model: one batch, every call's own errors, the answers of a single thread."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.drafts import PROMPTS, all_free, load, write

import archzoo
from archzoo.errors import CollectiveError, InputError, LogitsError
from archzoo.runtime.checkpoint import Checkpoint
from archzoo.runtime.engine import Engine
from archzoo.runtime.turns import Turns
from tiny import ids_of

GUARD = 300.0
"""Seconds after which something hangs; nothing here waits for time to pass."""
NEW = 8
TOPOLOGIES: list[dict[str, int]] = [{}, {"tp": 3}, {"pp": 2}, {"tp": 2, "attn_dp": 2}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads")
    write(path)
    return path


@pytest.fixture
def model(folder: Path) -> archzoo.Model:
    return load(folder / "target")


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What calls give or raise, each in a thread of its own, all at once."""
    found: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(at: int) -> None:
        barrier.wait(GUARD)
        try:
            found[at] = calls[at]()
        except BaseException as error:
            found[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
        assert not thread.is_alive(), "a thread waits for ever"
    return found


def started(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + GUARD
    while not true():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def queued(model: archzoo.Model) -> int:
    """Calls that have the turn or wait for it."""
    root = model.engine.turns.root
    return len(root._calls) + len(root._riders)


def generated(model: archzoo.Model, prompt: Sequence[int], **options: Any) -> list[int]:
    found = model.generate(prompt, NEW, ignore_eos=True, **options)
    if options.get("stream"):
        return [token for part in found for token in part.token_ids]  # type: ignore[union-attr]
    return found.token_ids  # type: ignore[union-attr]


@pytest.mark.parametrize("draft", [None, "noisy", "head"])
@pytest.mark.parametrize("stream", [False, True])
def test_requests_of_two_threads_are_in_one_forward_batch(
    folder: Path, draft: str | None, stream: bool
) -> None:
    model = load(folder / "target", tp=1 if draft else 3)
    options: dict[str, Any] = {"stream": stream}
    if draft:
        options["draft"] = load(folder / draft)
    want = [generated(model, prompt) for prompt in PROMPTS[:2]]
    found: list[list[int]] = [[], []]
    sizes: list[int] = []
    second: list[threading.Thread] = []

    def look(module: Any, args: tuple[Any, ...]) -> None:
        if not second:
            other = started(lambda: found[1].extend(generated(model, PROMPTS[1], **options)))
            second.append(other)
            until(lambda: queued(model) > 1)
        sizes.append(len(args[2].requests.req_pool_indices))

    hook = model.module.register_forward_pre_hook(look)
    found[0] = generated(model, PROMPTS[0], **options)
    second[0].join(GUARD)
    hook.remove()
    assert found == want
    assert max(sizes) == 2, "the threads took turns with whole calls"
    assert all_free(model)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("sizes", "draft", "slots"),
    [
        ({}, "self", 64),
        ({}, "head", 512),
        ({"tp": 3}, "noisy", 96),
        ({"pp": 2}, None, 512),
        ({"tp": 2, "attn_dp": 2}, "self", 512),
    ],
)
def test_all_methods_at_once(
    folder: Path, sizes: dict[str, int], draft: str | None, slots: int
) -> None:
    """Eight threads, any call: the answers of one thread, errors where they belong, no slot lost."""
    model = load(folder / "target", kv_slots=slots, **sizes)
    bad = 0
    if not sizes:
        model.module.model.embed_tokens.weight.data[bad] = float("nan")
    other = None if draft is None else model
    if draft not in (None, "self"):
        other = load(folder / str(draft), kv_slots=slots, **sizes)
    tokens = [generated(model, prompt) for prompt in PROMPTS]
    logits = [model.logits(prompt) for prompt in PROMPTS]
    scores = [model.logprobs(prompt).token_logprobs[1:] for prompt in PROMPTS]
    weights = {name: tensor.clone() for name, tensor in model.export_weights()}
    drafted = draft in ("self", "noisy")
    others = [generated(other, prompt) for prompt in PROMPTS] if other and drafted else []

    def one(draw: random.Random) -> None:
        at = draw.randrange(len(PROMPTS))
        prompt, options = PROMPTS[at], {"draft": other} if draw.random() < 0.5 else {}
        match draw.randrange(9):
            case 0:
                assert generated(model, prompt, **options) == tokens[at]
            case 1:
                assert generated(model, prompt, stream=True, **options) == tokens[at]
            case 2:
                results = model.generate(PROMPTS, NEW, ignore_eos=True, **options)
                assert [each.token_ids for each in results] == tokens
            case 3:
                stream: Any = model.generate(prompt, 20, ignore_eos=True, stream=True, **options)
                next(stream)
                if draw.random() < 0.5:
                    stream.close()
            case 4:
                found = model.logits(prompt, chunk_size=draw.choice([None, 4]))
                torch.testing.assert_close(found, logits[at], rtol=0, atol=1e-5)
            case 5:
                found_scores = model.logprobs(prompt).token_logprobs[1:]
                assert found_scores == pytest.approx(scores[at], abs=1e-5)
            case 6:
                if sizes:
                    with pytest.raises(InputError, match="context"):
                        model.generate(ids_of(4), 1000)
                else:
                    with pytest.raises(LogitsError):
                        model.generate([bad, 5], 4, **options)
            case 7:
                for name, tensor in model.export_weights():
                    torch.testing.assert_close(
                        tensor, weights[name], rtol=0, atol=0, equal_nan=True
                    )
            case _:
                assert model.cache_stats.held_tokens <= slots * len(model.engine.lanes)
                if others and other is not None:
                    back = {"draft": model} if draw.random() < 0.5 else {}
                    assert generated(other, prompt, **back) == others[at]

    def many(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(8):
            one(draw)

    errors = together(*[lambda seed=seed: many(seed) for seed in range(8)])  # type: ignore[misc]
    assert [error for error in errors if error is not None] == []
    gc.collect()
    assert not model.engine.has_work and (other is None or not other.engine.has_work)
    assert all_free(model) and (other is None or all_free(other))


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_a_step_that_fails_is_raised_by_the_thread_that_made_it(
    model: archzoo.Model, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    want = generated(model, PROMPTS[0])
    plain, inside = Engine._run, threading.Event()

    def run(self: Engine, *args: Any) -> Any:
        if threading.current_thread().name == "unlucky":
            inside.set()
            until(lambda: queued(model) == 4)
            raise error
        return plain(self, *args)

    def call() -> list[int]:
        return generated(model, PROMPTS[0])

    def first() -> list[int]:
        threading.current_thread().name = "unlucky"
        return call()

    def later() -> list[int]:
        assert inside.wait(GUARD)
        return call()

    monkeypatch.setattr(Engine, "_run", run)
    found = together(first, later, later, later)
    assert found == [error, want, want, want]
    assert not model.engine.has_work and all_free(model)


def test_a_draft_that_fails_ends_its_own_requests_only(folder: Path) -> None:
    model, draft = load(folder / "target"), load(folder / "noisy")
    want = generated(model, PROMPTS[0])
    generated(model, PROMPTS[0], draft=draft)
    failed: list[BaseException] = []
    second: list[threading.Thread] = []

    def fail(*_: Any) -> None:
        raise OSError("no draft")

    def drafted() -> None:
        try:
            generated(model, PROMPTS[0], draft=draft)
        except OSError as error:
            failed.append(error)

    def join(*_: Any) -> None:
        if not second:
            second.append(started(drafted))
            until(lambda: queued(model) == 2)

    draft.module.register_forward_pre_hook(fail)
    model.module.register_forward_pre_hook(join)
    try:
        plain = generated(model, PROMPTS[0])
    except OSError:
        plain = []
    assert plain == want, "the thread that stepped got another one's error"
    second[0].join(GUARD)
    assert [str(error) for error in failed] == ["no draft"]
    assert all_free(model, draft)


def test_turns_come_in_order_of_arrival() -> None:
    """Whoever asks during a step comes before the next one, and riders when they are ready."""
    turns, log = Turns(), []
    threads: list[threading.Thread] = []
    done = {"a": False, "b": False}

    def score(name: str) -> None:
        with turns.take():
            log.append(name)

    def ride() -> None:
        with turns.ride("engine", lambda: done["b"]) as turn:
            while not done["b"]:
                log.append("b drives")
                done["b"] = True
                turn.pause()
            log.append("b")

    with turns.ride("engine", lambda: done["a"]) as turn:
        for step in range(3):
            log.append(f"step {step}")
            if step == 0:
                for at, call in enumerate([ride, lambda: score("x"), lambda: score("y")]):
                    threads.append(started(call))
                    until(lambda at=at: len(turns._calls) + len(turns._riders) == at + 2)  # type: ignore[misc]
            done["b"] = step == 1
            turn.pause()
        log.append("end")
    for thread in threads:
        thread.join(GUARD)
    assert log == ["step 0", "x", "y", "step 1", "b", "step 2", "end"]


def test_a_driver_that_leaves_hands_over() -> None:
    turns, log = Turns(), []

    def ride(name: str) -> None:
        with turns.ride("engine", lambda: False):
            log.append(name)

    with pytest.raises(OSError, match="no"), turns.ride("engine", lambda: False):
        riders = []
        for at, name in enumerate("ab"):
            riders.append(started(lambda name=name: ride(name)))  # type: ignore[misc]
            until(lambda at=at: len(turns._riders) == at + 1)  # type: ignore[misc]
        raise OSError("no")
    for rider in riders:
        rider.join(GUARD)
    assert log == ["a", "b"] and not turns._calls and not turns._riders


@pytest.mark.parametrize("sizes", TOPOLOGIES)
def test_calls_from_inside_are_refused(folder: Path, sizes: dict[str, int]) -> None:
    """On the thread of any rank; reading is allowed, and closing happens at the end of the step."""
    model = load(folder / "target", **sizes)
    want = generated(model, PROMPTS[0])
    closed: Any = model.generate(PROMPTS[1], 9, stream=True)
    dropped: list[Any] = [model.generate(PROMPTS[2], 9, stream=True)]
    calls: list[Callable[[], Any]] = [
        lambda: model.logits([3]),
        lambda: model.generate([3], 1),
        lambda: model.generate([3], 1, draft=model),
        lambda: list(model.export_weights()),
        lambda: model.update_weights([]),
        lambda: model.set_aux_layers((1,)),
        model.engine.step,
        model.untie,
    ]
    seen: list[InputError] = []

    def inside(*_: Any) -> None:
        for call in calls:
            try:
                call()
            except InputError as error:
                seen.append(error)
        assert model.engine.has_work and model.cache_stats.prompt_tokens
        closed.close()
        dropped.clear()

    hook = model.engine.runners[-1].module.register_forward_hook(inside)
    assert generated(model, PROMPTS[0]) == want
    assert seen and len(seen) % len(calls) == 0, "a call went through"
    assert sum("inside" in str(error) for error in seen) == len(seen) // len(calls) * 7
    hook.remove()
    assert not model.engine.has_work and list(closed) == [] and all_free(model)


def test_a_signal_handler_that_calls_the_model_is_refused(model: archzoo.Model) -> None:
    seen: list[Any] = []

    def handle(*_: object) -> None:
        try:
            seen.append(model.logits([3]))
        except InputError as error:
            seen.append(str(error))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        hook = model.module.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
        generated(model, PROMPTS[0])
    finally:
        signal.signal(signal.SIGUSR1, before)
        hook.remove()
    assert len(seen) == NEW and all("signal handler" in text for text in seen)


def test_an_interrupt_ends_a_thread_that_waits(model: archzoo.Model) -> None:
    """Ctrl-C while another thread steps: this call ends, that one goes on."""
    want = generated(model, PROMPTS[0])
    inside, go_on = threading.Event(), threading.Event()
    found: list[list[int]] = []

    def hold(*_: Any) -> None:
        inside.set()
        assert go_on.wait(GUARD)

    hook = model.module.register_forward_pre_hook(hold)
    other = started(lambda: found.append(generated(model, PROMPTS[0])))
    assert inside.wait(GUARD)

    def interrupt() -> None:
        until(lambda: queued(model) == 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    killer = started(interrupt)
    with pytest.raises(KeyboardInterrupt):
        generated(model, PROMPTS[1])
    assert queued(model) == 1
    go_on.set()
    for thread in (other, killer):
        thread.join(GUARD)
    hook.remove()
    assert found == [want] and all_free(model)


def test_a_stream_that_threads_share(model: archzoo.Model) -> None:
    """Each piece goes to one of them; closed by one, it ends for all."""
    want = generated(model, PROMPTS[0])
    stream: Any = model.generate(PROMPTS[0], NEW, ignore_eos=True, stream=True)
    parts = together(*[lambda: [part.token_ids for part in stream]] * 4)
    assert sorted(token for part in parts for ids in part for token in ids) == sorted(want)
    waiting: Any = model.generate(PROMPTS[0], 60, ignore_eos=True, stream=True)
    first = threading.Event()

    def read() -> int:
        count = 0
        for _ in waiting:
            count += 1
            first.set()
        return count

    def close() -> None:
        assert first.wait(GUARD)
        waiting.close()

    counts = together(read, read, close)
    assert sum(counts[:2]) <= 60 and list(waiting) == []
    assert not model.engine.has_work and all_free(model)


def test_updates_wait_for_scoring_and_refuse_generating(model: archzoo.Model) -> None:
    weights = [(name, tensor.clone()) for name, tensor in model.export_weights()]
    halved = [(name, tensor / 2) for name, tensor in weights]
    score = model.logits(PROMPTS[2])
    inside, threads = threading.Event(), []

    def hold(*_: Any) -> None:
        if not inside.is_set():
            threads.append(started(lambda: model.update_weights(halved)))
            until(lambda: queued(model) == 2)
            inside.set()

    hook = model.module.register_forward_pre_hook(hold)
    torch.testing.assert_close(model.logits(PROMPTS[2], chunk_size=7), score, rtol=0, atol=1e-9)
    threads[0].join(GUARD)
    hook.remove()
    assert not torch.allclose(model.logits(PROMPTS[2]), score)
    stream = model.generate(PROMPTS[0], NEW, stream=True)
    (error,) = together(lambda: model.update_weights(weights))
    assert isinstance(error, InputError) and "under way" in str(error)
    assert len(list(stream))
    model.update_weights((name, 2 * tensor) for name, tensor in model.export_weights())
    torch.testing.assert_close(model.logits(PROMPTS[2]), score, rtol=0, atol=1e-9)


def test_hidden_states_are_those_of_one_setting(model: archzoo.Model) -> None:
    """More prompts than one pass holds, and another thread that asks for other states meanwhile."""
    prompts = [PROMPTS[0]] * (Engine.SCORING_ROWS + 1)
    changed: list[int] = []

    def change(*_: Any) -> None:
        if not changed:
            changed.append(1)
            started(lambda: model.set_aux_layers((1,)))
            until(lambda: queued(model) == 2)

    hook = model.module.register_forward_hook(change)
    outputs = model.forward(prompts)
    hook.remove()
    assert {len(output.aux_hidden_states) for output in outputs} == {1}


def test_asyncio(model: archzoo.Model) -> None:
    want = [generated(model, prompt) for prompt in PROMPTS]

    async def ask() -> list[list[int]]:
        return await asyncio.gather(
            *[asyncio.to_thread(generated, model, prompt) for prompt in PROMPTS]
        )

    assert asyncio.run(ask()) == want


def test_autocast_is_not_that_of_whoever_drives(folder: Path) -> None:
    model = load(folder / "target", dtype=torch.float32)
    want, logits = generated(model, PROMPTS[0]), model.logits(PROMPTS[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        others = together(lambda: generated(model, PROMPTS[0]))
        assert [generated(model, PROMPTS[0]), *others] == [want, want]
        assert torch.equal(model.logits(PROMPTS[1]), logits)


def test_the_tokenizer_is_loaded_by_whoever_is_first(folder: Path) -> None:
    checkpoint = Checkpoint(folder / "target")
    barrier = threading.Barrier(3)

    def make() -> Any:
        barrier.wait(GUARD)
        return object()

    checkpoint._tokenizer = make
    first, *others = together(*[lambda: checkpoint.tokenizer] * 3)
    assert all(other is first for other in others)
    checkpoint.close()


def test_two_threads_under_torchrun_are_refused() -> None:
    turns = Turns(alone="one thread, please")
    errors: list[Any] = []

    def other() -> None:
        with turns.look():
            errors.append("looked")
        with turns.take():
            errors.append("taken")

    def crowded() -> None:
        with pytest.raises(CollectiveError, match="one thread, please"), turns.take():
            errors.append("taken")

    with turns.take():
        crowd = started(crowded)
        crowd.join(GUARD)
        looking = started(other)
        until(lambda: len(turns._calls) == 2)
    looking.join(GUARD)
    assert errors == ["looked", "taken"]
