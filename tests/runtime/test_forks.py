"""Processes that are forked after a load; copies and pickles of what is loaded."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.drafts import PROMPTS, write

import archzoo
from archzoo.errors import ArchzooError, CollectiveError, InputError
from archzoo.parallel.in_process import InProcessWorld
from archzoo.runtime.turns import Turns

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

GUARD = 300.0
"""Seconds after which a child hangs."""
TOPOLOGIES: list[dict[str, int]] = [{}, {"tp": 3}, {"pp": 2}, {"tp": 2, "attn_dp": 2}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forks")
    write(path)
    return path


def in_child(call: Callable[[], Any]) -> Any:
    """What a call gives or raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            found: Any = call()
        except BaseException as error:
            found = error
        try:
            os.write(writing, pickle.dumps(found))
        finally:
            os._exit(0)
    os.close(writing)
    end = time.monotonic() + GUARD
    try:
        while not os.waitpid(child, os.WNOHANG)[0]:
            assert time.monotonic() < end, "the child waits for ever"
            time.sleep(0.001)
        return pickle.loads(os.read(reading, 1 << 16))
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reading)


def greedy(model: archzoo.Model, **options: Any) -> list[list[int]]:
    return [one.token_ids for one in model.generate(PROMPTS, 5, ignore_eos=True, **options)]


@pytest.mark.parametrize("sizes", TOPOLOGIES)
def test_a_child_answers_as_its_parent(folder: Path, sizes: dict[str, int]) -> None:
    """Forked before the first call and after it, beside an open stream; the child of a child too."""
    model = archzoo.load(folder / "target", **sizes)
    draft = archzoo.load(folder / "noisy", **sizes)
    early = in_child(lambda: greedy(model))
    want = greedy(model)
    stream: Any = model.generate(PROMPTS[0], 6, ignore_eos=True, stream=True)
    first = next(stream).token_ids
    assert early == want
    assert in_child(lambda: (greedy(model, draft=draft), in_child(lambda: greedy(model)))) == (
        want,
        want,
    )
    rest = in_child(lambda: [token for part in stream for token in part.token_ids])
    assert rest == [token for part in stream for token in part.token_ids]
    assert len(first) + len(rest) == 6
    assert in_child(lambda: model.logits(PROMPTS[0]).tolist()) == model.logits(PROMPTS[0]).tolist()
    assert greedy(model, draft=draft) == want


def test_workers_of_multiprocessing(folder: Path) -> None:
    model = archzoo.load(folder / "target", tp=3)
    want = greedy(model)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = [context.Process(target=lambda: results.put(greedy(model))) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get() for _ in workers] == [want, want]
    for worker in workers:
        worker.join(GUARD)
        assert worker.exitcode == 0


@pytest.mark.parametrize("sizes", TOPOLOGIES[:2])
def test_a_fork_while_another_thread_is_in_a_step(folder: Path, sizes: dict[str, int]) -> None:
    model = archzoo.load(folder / "target", **sizes)
    want = greedy(model)
    inside, go_on = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        inside.set()
        assert go_on.wait(GUARD)

    hook = model.module.register_forward_pre_hook(hold)
    thread = threading.Thread(target=greedy, args=(model,), daemon=True)
    thread.start()
    assert inside.wait(GUARD)
    hook.remove()
    calls: list[Callable[[], Any]] = [
        lambda: greedy(model),
        lambda: model.logits(PROMPTS[0]),
        lambda: model.cache_stats,
        lambda: model.update_weights([]),
    ]
    for call in calls:
        error = in_child(call)
        assert isinstance(error, InputError) and "another thread" in str(error)
    go_on.set()
    thread.join(GUARD)
    assert in_child(lambda: greedy(model)) == want


def test_a_fork_inside_of_a_step(folder: Path) -> None:
    model = archzoo.load(folder / "target", tp=3)
    found: list[Any] = []

    def fork(*_: Any) -> None:
        found.append(in_child(lambda: greedy(model)))

    hook = model.module.register_forward_hook(fork)
    model.generate(PROMPTS[0], 1)
    hook.remove()
    assert [type(error) for error in found] == [InputError]


def test_a_world_begins_anew_in_a_child() -> None:
    """Also when another thread was inside of it; a rank that is forked itself meets nobody."""
    world = InProcessWorld(3)
    meet = [world.factory(rank)("tp", (0, 1, 2), rank).all_reduce for rank in range(3)]
    inside, go_on = threading.Event(), threading.Event()

    def total() -> list[float]:
        return [float(x) for x in world.run(lambda rank: meet[rank](torch.ones(())))]

    def hold(rank: int) -> None:
        inside.set()
        assert go_on.wait(GUARD)

    thread = threading.Thread(target=world.run, args=(hold,), daemon=True)
    thread.start()
    assert inside.wait(GUARD)
    assert in_child(total) == [3.0] * 3
    go_on.set()
    thread.join(GUARD)
    assert total() == [3.0] * 3

    def forked(rank: int) -> Any:
        return in_child(lambda: meet[rank](torch.ones(())))

    errors = world.run(forked)
    assert {type(error) for error in errors} == {CollectiveError}


def test_a_thread_of_several_torch_threads_goes_on_with_one(folder: Path) -> None:
    """GNU OpenMP would wait for the threads that the fork left behind."""
    model = archzoo.load(folder / "target", tp=3)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        matrix = torch.ones(1024, 1024)
        (matrix @ matrix).exp_()
        want = greedy(model)

        def child() -> tuple[list[list[int]], int, list[str], list[int]]:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = greedy(model)
                (matrix @ matrix).exp_()
                greedy(model)
            return found, torch.get_num_threads(), [str(each.message) for each in told], want[0]

        found, threads, told, _ = in_child(child)
    finally:
        torch.set_num_threads(before)
    assert (found, threads) == (want, 1)
    assert len(told) == 1 and "2 threads of torch's" in told[0]


def test_what_a_child_cannot_use_says_so() -> None:
    turns = Turns(unforkable="the others are elsewhere")

    def use() -> str:
        with turns.take():
            return "used"

    assert use() == "used"
    error = in_child(use)
    assert isinstance(error, InputError) and "the others are elsewhere" in str(error)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda it: pickle.loads(pickle.dumps(it)),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_used_model(folder: Path, how: str) -> None:
    """Refused by name; a module that packs nothing can be copied."""
    model = archzoo.load(folder / "target", dtype=torch.float32)
    stream: Any = model.generate(PROMPTS[0], 6, stream=True)
    next(stream)
    for thing in (model, model.engine, stream):
        with pytest.raises(InputError, match=f"{type(thing).__name__} cannot be pickled or copied"):
            COPIES[how](thing)
    for thing in (model.report, model.config, model.generate(PROMPTS[0], 2), model.cache_stats):
        assert COPIES[how](thing) == thing
    plain = archzoo.load(folder / "target", dtype=torch.float64)
    plain.logits(PROMPTS[0])
    copied = COPIES[how](plain.module).state_dict()
    assert all(torch.equal(copied[name], each) for name, each in plain.module.state_dict().items())


def test_packed_weights_are_refused_by_name() -> None:
    from archzoo.quantization.unquantized import UnquantizedLinearMethod
    from archzoo.quantization.unquantized_experts import UnquantizedExpertsMethod

    linear, experts = UnquantizedLinearMethod(), UnquantizedExpertsMethod()
    assert copy.deepcopy(linear).packed is None and copy.deepcopy(experts).packed == ()
    linear.packed, experts.packed = torch.ones(2), (torch.ones(2),)
    for method in (linear, experts):
        for make in COPIES.values():
            with pytest.raises(ArchzooError, match="packs weights"):
                make(method)
