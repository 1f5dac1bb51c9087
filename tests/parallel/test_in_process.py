from __future__ import annotations

import copy
import gc
import pickle
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from agents import HANGING
from torch import Tensor, nn

from archzoo.errors import CollectiveError, ShapeError, TopologyError
from archzoo.parallel import Group, Groups, Topology
from archzoo.parallel.in_process import (
    CollectiveRecord,
    InProcessCommunicator,
    InProcessWorld,
)
from archzoo.parallel.meeting import name_ranks

T = TypeVar("T")
Body = Callable[[Group], Any]


def all_groups(world: InProcessWorld, sizes: Topology | None = None) -> list[Groups]:
    sizes = sizes or Topology(tp=world.size)
    return [Groups.of(sizes.at(rank), world.factory(rank)) for rank in range(world.size)]


def on_each(world: InProcessWorld, *bodies: Callable[[Group], T]) -> list[T]:
    """Run body r on rank r with its tp group; the last body serves the ranks left over."""
    groups = [groups["tp"] for groups in all_groups(world)]
    return world.run(lambda rank: bodies[min(rank, len(bodies) - 1)](groups[rank]))


def fails(world: InProcessWorld, *bodies: Body) -> str:
    """Message of the CollectiveError of such a run."""
    with pytest.raises(CollectiveError) as caught:
        on_each(world, *bodies)
    still_usable(world)
    return str(caught.value)


def still_usable(world: InProcessWorld) -> None:
    total = float(sum(range(world.size)))
    sums = on_each(world, lambda group: group.all_reduce(torch.tensor(float(group.rank))).item())
    assert sums == [total] * world.size


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_collective_against_one_process(size: int, dtype: torch.dtype) -> None:
    world = InProcessWorld(size)
    for shape in [(size, 3), (2 * size, 1), (0, 3), (size, 0)]:
        compare(world, [torch.randn(shape).mul(8).to(dtype) for _ in range(size)])


def compare(world: InProcessWorld, xs: list[Tensor]) -> None:
    size, src, kept = world.size, world.size // 2, [x.clone() for x in xs]
    total = xs[0].clone()
    for x in xs[1:]:
        total = total + x  # the order is part of the contract

    def body(group: Group) -> tuple[Tensor, ...]:
        x = xs[group.rank]
        return (
            group.all_reduce(x),
            group.all_gather(x, 0),
            group.all_gather(x),
            group.reduce_scatter(x),
            group.broadcast(x, src),
        )

    for rank, found in enumerate(on_each(world, body)):
        part = total.tensor_split(size)[rank]
        wanted = (total, torch.cat(xs, 0), torch.cat(xs, 1), part, xs[src])
        assert all(map(torch.equal, found, wanted))
        assert {x.dtype for x in found} == {xs[0].dtype}
    assert all(map(torch.equal, xs, kept))


def test_sums_are_taken_in_rank_order() -> None:
    """1e8 + 1 - 1e8 is 0 in float32 and 1 in any order that cancels first."""
    world = InProcessWorld(3)
    values = [1e8, 1.0, -1e8]
    summed = on_each(
        world, lambda group: group.all_reduce(torch.tensor([values[group.rank]])).item()
    )
    assert summed == [0.0, 0.0, 0.0]
    scattered = on_each(
        world, lambda group: group.reduce_scatter(torch.full((3,), values[group.rank])).item()
    )
    assert scattered == [0.0, 0.0, 0.0]


def test_results_are_contiguous_and_share_nothing() -> None:
    world = InProcessWorld(3)
    base = torch.arange(27.0).reshape(9, 3)
    inputs = [base.t()[:, 3 * rank : 3 * rank + 3] for rank in range(3)]

    def body(group: Group) -> list[Tensor]:
        x = inputs[group.rank]
        return [
            group.all_reduce(x),
            group.all_gather(x, 1),
            group.reduce_scatter(x, 1),
            group.broadcast(x, 1),
        ]

    results = [x for rank in on_each(world, body) for x in rank]
    assert all(x.is_contiguous() and type(x) is Tensor for x in results)
    storages = {x.untyped_storage().data_ptr() for x in (*results, base)}
    assert len(storages) == 13
    for x in results:
        x.fill_(float("nan"))
    assert torch.equal(base, torch.arange(27.0).reshape(9, 3))


def test_scalars_meta_tensors_and_parameters() -> None:
    world = InProcessWorld(2)
    assert on_each(world, lambda g: g.all_reduce(torch.tensor(g.rank + 1)).item()) == [3, 3]
    meta = on_each(world, lambda g: g.all_gather(torch.empty(2, 3, device="meta"), 1).shape)
    assert meta == [(2, 6), (2, 6)]
    parameter = nn.Parameter(torch.ones(2))
    for result in on_each(world, lambda g: g.all_reduce(parameter)):
        assert type(result) is Tensor and not result.requires_grad


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_over_all_groups(seed: int) -> None:
    """The same random sequence of collectives, by threads and by hand on the list of all ranks."""
    draw = random.Random(seed)
    sizes = draw.choice(
        [Topology(tp=4, pp=2, attn_dp=2), Topology(tp=6, attn_dp=3), Topology(tp=2, pp=3)]
    )
    count = sizes.world_size
    names = ["world", "tp", "pp", "attn_tp", "attn_dp"]
    kinds = ["all_reduce", "gather_cut", "scatter_gather", "broadcast"]
    program = [(draw.choice(kinds), draw.choice(names)) for _ in range(25)]
    start = [torch.randint(-9, 9, (24, 2)) for _ in range(count)]

    def by_threads(rank: int) -> Tensor:
        x = start[rank]
        for kind, name in program:
            group = groups[rank][name]
            if kind == "all_reduce":
                x = group.all_reduce(x) % 97
            elif kind == "gather_cut":
                x = group.all_gather(x, 0)[-24:]
            elif kind == "scatter_gather":
                x = group.all_gather(group.reduce_scatter(x, 0), 0) % 97
            else:
                x = group.broadcast(x, group.size - 1)
        return x

    def by_hand(rank: int, xs: list[Tensor], kind: str, name: str) -> Tensor:
        ranks = sizes.at(rank).ranks_of(name)
        if kind in ("gather_cut", "broadcast"):
            return xs[ranks[-1]]
        return torch.stack([xs[other] for other in ranks]).sum(0) % 97

    wanted = list(start)
    for kind, name in program:
        wanted = [by_hand(rank, wanted, kind, name) for rank in range(count)]
    world = InProcessWorld(count)
    groups = all_groups(world, sizes)
    assert all(map(torch.equal, world.run(by_threads), wanted))


def test_send_and_receive_along_a_pipeline() -> None:
    world = InProcessWorld(4)

    def body(group: Group) -> Tensor:
        x = torch.zeros(2, 3, dtype=torch.bfloat16)
        if group.rank:
            x = group.recv(x, group.rank - 1)
        sent = x + group.rank
        if group.rank < 3:
            group.send(sent, group.rank + 1)
            sent.fill_(-1)  # handed over already: the receiver has its own
        return x

    received = on_each(world, body)
    assert [int(x[0, 0]) for x in received] == [0, 0, 1, 3]


# --- who did not come ----------------------------------------------------------------------------


ONE = torch.ones(2, 2)


def reduce(group: Group) -> Tensor:
    return group.all_reduce(ONE)


def renamed(group: Group, name: str) -> Group:
    """The same ranks under another name."""
    assert isinstance(group.comm, InProcessCommunicator)
    return replace(group, name=name, comm=replace(group.comm, group=name))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda g: g.all_gather(ONE, 0), "all_gather (dim 0) over group 'tp' of [2, 2] float32 on"),
        (lambda g: g.all_reduce(torch.ones(2, 3)), "all_reduce over group 'tp' of [2, 3] float32"),
        (lambda g: g.all_reduce(torch.ones(4)), "all_reduce over group 'tp' of [4] float32"),
        (lambda g: g.all_reduce(ONE.bfloat16()), "all_reduce over group 'tp' of [2, 2] bfloat16"),
        (
            lambda g: g.all_reduce(ONE.to("meta")),
            "all_reduce over group 'tp' of [2, 2] float32 on m",
        ),
        (
            lambda g: renamed(g, "ffn").all_reduce(ONE),
            "all_reduce over group 'ffn' of [2, 2] float",
        ),
    ],
)
def test_calls_that_do_not_fit_are_named(other: Body, says: str) -> None:
    message = fails(InProcessWorld(3), reduce, other)
    assert message.startswith("ranks met in different collectives: ")
    assert "rank 0 in all_reduce over group 'tp' of [2, 2] float32 on cpu at" in message
    assert f"rank 1 in {says}" in message
    assert message.count("parallel/test_in_process.py:") == 2


def test_dims_and_sources_must_agree() -> None:
    message = fails(
        InProcessWorld(2), lambda g: g.all_gather(ONE, 0), lambda g: g.all_gather(ONE, 1)
    )
    assert "rank 0 in all_gather (dim 0)" in message and "rank 1 in all_gather (dim 1)" in message
    message = fails(InProcessWorld(3), lambda g: g.broadcast(ONE, 0), lambda g: g.broadcast(ONE, 1))
    assert "rank 0 in broadcast (src 0)" in message and "rank 1 in broadcast (src 1)" in message


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_what_one_sends_is_what_the_other_receives(odd: int) -> None:
    """Whichever two of three ranks disagree, and whatever the order in which they come."""

    def swap(group: Group) -> Tensor:
        receive = [1, 1, 1]
        if group.rank == odd:
            receive[(odd + 1) % 3] = 2
        return group.all_to_all(torch.ones(3, 2), [1, 1, 1], receive)

    message = fails(InProcessWorld(3), swap)
    assert "all_to_all ([1, 1, 1] rows to send" in message and "2" in message
    wide = fails(
        InProcessWorld(2),
        lambda g: g.all_to_all(torch.ones(2, 2), [1, 1], [1, 1]),
        lambda g: g.all_to_all(torch.ones(2, 3), [1, 1], [1, 1]),
    )
    assert "[2, 2]" in wide and "[2, 3]" in wide


def test_negative_and_positive_dims_are_one() -> None:
    found = on_each(
        InProcessWorld(2), lambda g: g.all_gather(ONE, 1), lambda g: g.all_gather(ONE, -1)
    )
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_rank_that_ends_early_is_named_with_what_waits(missing: int) -> None:
    world = InProcessWorld(3)
    message = fails(world, *(reduce if rank != missing else id for rank in range(3)))
    waiting = [rank for rank in range(3) if rank != missing]
    assert message.startswith(f"rank {missing} ended without entering what others wait for: ")
    assert (
        "in all_reduce over group 'tp' of [2, 2] float32 on cpu at parallel/test_in_proc" in message
    )
    named = name_ranks(waiting)
    assert named in message or f"rank {waiting[0]} in" in message


def test_an_early_end_is_seen_before_later_ranks_run() -> None:
    seen: list[int] = []

    def body(group: Group) -> None:
        seen.append(group.rank)
        if group.rank != 1:
            reduce(group)

    fails(InProcessWorld(5), body)
    assert seen == [0, 1]


def test_one_collective_too_many() -> None:
    message = fails(InProcessWorld(64), lambda g: (reduce(g), reduce(g)), reduce)
    assert "rank 0 in all_reduce" in message and message.startswith("rank 63 ended")
    message = fails(InProcessWorld(64), reduce, lambda g: (reduce(g), reduce(g)))
    assert message.startswith("rank 0 ended")


def test_long_rank_lists_are_shortened() -> None:
    assert name_ranks([7]) == "rank 7"
    assert name_ranks([2, 1, 0, 5, 8, 9]) == "ranks 0-2, 5, 8, 9"
    world = InProcessWorld(64)

    def body(group: Group) -> Tensor:
        return group.all_reduce(ONE if group.rank < 63 else ONE[0])

    assert "ranks 0-62 in all_reduce over group 'tp' of [2, 2]" in fails(world, body)


def test_a_circle_of_receivers_is_a_deadlock_with_names() -> None:
    message = fails(InProcessWorld(3), lambda g: g.recv(ONE, (g.rank + 1) % 3))
    assert message.startswith("deadlock, every rank waits for another")
    assert "ranks 0-2 in recv over group 'tp' of [2, 2] float32 on cpu at parallel/" in message


def test_a_circle_of_senders_is_a_deadlock() -> None:
    """Real backends block in send until the other side receives."""
    message = fails(InProcessWorld(2), lambda g: (g.send(ONE, 1 - g.rank), g.recv(ONE, 1 - g.rank)))
    assert "deadlock" in message and "ranks 0, 1 in send over group 'tp'" in message


def test_groups_that_overlap_in_another_order_deadlock_with_names() -> None:
    sizes = Topology(tp=2, pp=2)
    world = InProcessWorld(4)
    groups = all_groups(world, sizes)

    def body(rank: int) -> None:
        for name in ("tp", "pp") if rank in (0, 3) else ("pp", "tp"):
            groups[rank][name].all_reduce(ONE)

    with pytest.raises(CollectiveError, match="deadlock") as caught:
        world.run(body)
    message = str(caught.value)
    assert "ranks 0, 3 in all_reduce over group 'tp'" in message
    assert "ranks 1, 2 in all_reduce over group 'pp'" in message


def test_what_is_sent_must_be_what_is_expected() -> None:
    world = InProcessWorld(2)
    message = fails(world, lambda g: g.send(ONE, 1), lambda g: g.recv(torch.empty(4), 0))
    assert "send over group 'tp' of [2, 2]" in message and "recv over group 'tp' of [4]" in message
    message = fails(world, lambda g: g.send(ONE, 1), id)
    assert message.startswith("rank 1 ended without") and "rank 0 in send" in message
    message = fails(world, lambda g: g.send(ONE, 1), reduce)
    assert "rank 0 in send" in message and "rank 1 in all_reduce" in message


def test_bad_arguments_never_enter() -> None:
    """Only rank 0 makes them, so entering would break the collective that follows."""

    def body(group: Group) -> float:
        if group.rank == 0:
            with pytest.raises(ShapeError, match=r"shape \[2, 2\] has no dim 2"):
                group.all_gather(ONE, 2)
            with pytest.raises(ShapeError, match=r"shape \[2, 2\] has no dim -3"):
                group.reduce_scatter(ONE, -3)
            with pytest.raises(ShapeError, match=r"'tp': dim 1 of shape \[2, 2\].* 3 equal parts"):
                group.reduce_scatter(ONE, 1)
            with pytest.raises(ShapeError, match=r"shape \[\] has no dim 0"):
                group.all_gather(torch.tensor(1.0), 0)
            with pytest.raises(CollectiveError, match="rank 3 is outside a group of 3 ranks"):
                group.broadcast(ONE, 3)
            with pytest.raises(CollectiveError, match="rank -1 is outside"):
                group.send(ONE, -1)
            with pytest.raises(CollectiveError, match="rank 0 of the group is the caller itself"):
                group.recv(ONE, 0)
        return group.all_reduce(torch.ones(())).item()

    assert on_each(InProcessWorld(3), body) == [3.0] * 3


# --- exceptions ----------------------------------------------------------------------------------


class Boom(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("guilty", [0, 1, 2])
@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, Boom])
def test_the_first_exception_comes_out_with_its_rank(
    guilty: int, kind: type[BaseException]
) -> None:
    world = InProcessWorld(3)
    seen: dict[int, str] = {}

    def body(group: Group) -> None:
        if group.rank == guilty:
            raise kind("bad")
        try:
            reduce(group)
        except CollectiveError as error:
            seen[group.rank] = str(error)
            raise

    with pytest.raises(kind) as caught:
        on_each(world, body)
    assert f"raised on rank {guilty} of 3" in caught.value.__notes__
    assert set(seen) == set(range(guilty)), "later ranks need not start"
    assert all(text.startswith(f"given up: rank {guilty} raised") for text in seen.values())
    assert all(kind.__name__ in text for text in seen.values())
    still_usable(world)


def test_a_rank_that_swallows_the_error_does_not_hide_it() -> None:
    def body(group: Group) -> str:
        for _ in range(3):
            try:
                reduce(group)
            except CollectiveError:
                continue
        return "fine"

    def guilty(group: Group) -> None:
        raise KeyError("gone")

    world = InProcessWorld(2)
    with pytest.raises(KeyError, match="gone"):
        on_each(world, body, guilty)
    assert fails(world, body, id).startswith("rank 1 ended")


def test_an_error_while_unwinding_is_not_the_cause() -> None:
    def body(group: Group) -> None:
        try:
            reduce(group)
        finally:
            raise RuntimeError("secondary")

    def guilty(group: Group) -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        on_each(InProcessWorld(3), body, guilty)


def test_the_traceback_shows_the_call_that_failed() -> None:
    circle: Body = partial(Group.recv, like=ONE, src=1)
    for bodies, line in (
        ((reduce, lambda g: g.all_gather(ONE)), "all_gather"),  # the call that did not fit
        ((reduce, id), "all_reduce"),  # the call that waits in vain
        ((circle, partial(Group.recv, like=ONE, src=0)), "recv"),
    ):
        with pytest.raises(CollectiveError) as caught:
            on_each(InProcessWorld(2), *bodies)
        assert line in [entry.name for entry in caught.traceback]


def test_failing_arithmetic_ends_all_ranks() -> None:
    """The rank that comes last does the sum for all; its error must not leave the others."""
    eight = torch.ones(2).to(torch.float8_e4m3fn)
    world = InProcessWorld(3)
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        on_each(world, lambda g: g.all_reduce(eight))
    assert "raised on rank 2 of 3" in caught.value.__notes__
    still_usable(world)


def test_one_run_at_a_time() -> None:
    world = InProcessWorld(2)

    def nested(group: Group) -> None:
        world.run(lambda rank: rank)

    with pytest.raises(CollectiveError, match="another run.. of the same in-process world of 2"):
        on_each(world, nested)
    still_usable(world)

    errors: list[Exception] = []

    def second() -> None:
        try:
            world.run(lambda rank: rank)
        except CollectiveError as error:
            errors.append(error)

    def body(group: Group) -> Tensor:
        if group.rank == 1:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        return reduce(group)

    assert on_each(world, body) and len(errors) == 1
    other = InProcessWorld(2)
    assert world.run(lambda rank: (rank, other.run(lambda r: r))) == [(0, [0, 1]), (1, [0, 1])]


def test_collectives_outside_their_rank_are_refused() -> None:
    world = InProcessWorld(2)
    groups = [groups["tp"] for groups in all_groups(world)]
    with pytest.raises(CollectiveError, match=r"all_reduce as rank 1 .* inside its run\(\)"):
        groups[1].all_reduce(ONE)
    with pytest.raises(CollectiveError, match="as rank 1 from outside that rank"):
        world.run(lambda rank: groups[1 - rank].all_reduce(ONE))

    caught: list[Exception] = []

    def stranger(group: Group) -> None:
        try:
            group.all_reduce(ONE)
        except CollectiveError as error:
            caught.append(error)

    def body(rank: int) -> None:
        thread = threading.Thread(target=stranger, args=(groups[rank],))
        thread.start()
        thread.join()

    world.run(body)
    assert len(caught) == 2
    still_usable(world)


@pytest.mark.parametrize("size", [0, -1, 65])
def test_sizes_out_of_range(size: int) -> None:
    with pytest.raises(TopologyError, match=f"1 to 64 ranks, not {size}"):
        InProcessWorld(size)


def test_factory_refuses_groups_that_are_not_of_this_rank() -> None:
    world = InProcessWorld(2)
    with pytest.raises(TopologyError, match="rank 2 is outside an in-process world of 2"):
        world.factory(2)
    for ranks, index in (((0, 1), 0), ((0, 1), 2), ((1, 2), 0)):
        with pytest.raises(TopologyError, match="is not one of rank 1 in an in-process world of 2"):
            world.factory(1)("tp", ranks, index)


# --- interrupts ----------------------------------------------------------------------------------


def interrupt() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_ctrl_c_ends_all_ranks() -> None:
    world = InProcessWorld(3)
    unwound: list[int] = []

    def body(group: Group) -> None:
        try:
            reduce(group)
            if group.rank == 1:
                interrupt()
            while True:
                reduce(group)
        except CollectiveError as error:
            assert "the caller of run() was interrupted (KeyboardInterrupt)" in str(error)
            unwound.append(group.rank)
            raise

    with pytest.raises(KeyboardInterrupt):
        on_each(world, body)
    assert sorted(unwound) == [0, 1, 2]
    still_usable(world)


def test_a_second_ctrl_c_leaves_a_rank_that_does_not_come_back() -> None:
    world = InProcessWorld(2)
    noticed, let_go = threading.Event(), threading.Event()
    errors: list[str] = []

    def body(group: Group) -> None:
        if group.rank:
            interrupt()
            assert noticed.wait(HANGING)
            interrupt()
            assert let_go.wait(HANGING)
        try:
            reduce(group)
        except CollectiveError as error:
            errors.append(str(error))

    fail = world._hall.baton.fail
    world._hall.baton.fail = lambda *args: (fail(*args), noticed.set())[0]  # type: ignore[method-assign]  # a spy
    with pytest.raises(KeyboardInterrupt):
        on_each(world, body)
    with pytest.raises(CollectiveError, match="rank 1 of this .* left running by an interrupt"):
        world.run(lambda rank: rank)
    let_go.set()
    deadline = time.monotonic() + HANGING
    while len(errors) < 2 or world._hall.baton._holder != -1:
        assert time.monotonic() < deadline, "ranks that were left unwind at their next collective"
        time.sleep(0.001)
    assert all(text.startswith("given up: the caller of run() was inter") for text in errors)
    still_usable(world)


# --- threads -------------------------------------------------------------------------------------


def test_one_rank_runs_at_a_time_in_a_fixed_order() -> None:
    world = InProcessWorld(5)
    running: set[int] = set()

    def run() -> list[int]:
        order: list[int] = []

        def body(group: Group) -> None:
            for _ in range(4):
                running.add(group.rank)
                assert running == {group.rank}
                time.sleep(0.0002)
                order.append(group.rank)
                running.discard(group.rank)
                reduce(group)

        on_each(world, body)
        return order

    assert run() == run()


def test_every_rank_keeps_its_thread() -> None:
    world = InProcessWorld(3)
    first, second = (world.run(lambda rank: threading.get_ident()) for _ in range(2))
    assert first == second and len(set(first)) == 3
    assert world.run(lambda rank: rank * rank) == [0, 1, 4]


def test_ranks_run_in_the_caller_s_modes() -> None:
    def modes(rank: int) -> tuple[bool, bool, int]:
        state = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.get_num_threads()
        torch.set_grad_enabled(not state[1])  # must not last
        return state

    world = InProcessWorld(2)
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 3):
            torch.set_num_threads(threads)
            assert world.run(modes) == [(False, True, threads)] * 2
            with torch.no_grad():
                assert world.run(modes) == [(False, False, threads)] * 2
            with torch.inference_mode():
                assert world.run(modes) == [(True, False, threads)] * 2
                result = on_each(world, reduce)[0]
                assert isinstance(result, Tensor) and result.is_inference()
            assert torch.is_grad_enabled() and torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("guilty", [None, 1])
def test_nothing_of_a_run_is_kept(guilty: int | None) -> None:
    world = InProcessWorld(2)
    kept: list[weakref.ref[Tensor]] = []

    def body(group: Group) -> Tensor:
        x = torch.ones(3)
        result = group.all_reduce(x)
        kept.extend([weakref.ref(x), weakref.ref(result)])
        if group.rank == guilty:
            raise KeyError
        return reduce(group)

    try:
        on_each(world, body)
    except KeyError:
        pass
    gc.collect()
    assert len(kept) == (2 if guilty else 4) and all(ref() is None for ref in kept)


def test_threads_end_with_the_world() -> None:
    before = set(threading.enumerate())
    world = InProcessWorld(8)
    on_each(world, reduce)
    started = set(threading.enumerate()) - before
    assert len(started) == 8 and all(thread.daemon for thread in started)
    del world
    gc.collect()
    for thread in started:
        thread.join(5)
    assert not any(thread.is_alive() for thread in started)


# --- records, copies -----------------------------------------------------------------------------


def test_record_lists_who_sends_how_much() -> None:
    world = InProcessWorld(2)
    with world.record() as log:
        on_each(world, reduce)
        with world.record() as inner:
            on_each(
                world,
                lambda g: g.send(ONE.bfloat16(), 1),
                lambda g: g.recv(torch.empty(2, 2, dtype=torch.bfloat16), 0),
            )
    on_each(world, reduce)
    assert log[:2] == [CollectiveRecord("all_reduce", "tp", 16, rank) for rank in range(2)]
    assert log[2:] == inner == [("send", "tp", 8, 0), ("recv", "tp", 8, 1)]


def test_groups_pickled_together_meet_again() -> None:
    world = InProcessWorld(2)
    groups = [groups["tp"] for groups in all_groups(world)]
    first, second = pickle.loads(pickle.dumps(groups))
    assert [first, second] == groups
    other = first.comm.world
    assert other is second.comm.world is not world
    assert other.run(lambda rank: (first, second)[rank].all_reduce(ONE).sum().item()) == [8.0, 8.0]


def test_a_deep_copy_stays_in_its_world() -> None:
    class Layer(nn.Module):
        def __init__(self, group: Group) -> None:
            super().__init__()
            self.group = group

    world = InProcessWorld(2)
    layers = [copy.deepcopy(Layer(groups["tp"])) for groups in all_groups(world)]
    assert world.run(lambda rank: layers[rank].group.all_reduce(ONE).sum().item()) == [8.0, 8.0]
