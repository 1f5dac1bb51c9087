"""The same collectives over gloo processes, started as torchrun does, and over threads.

Run as a script, this file is one rank of the gloo world: it runs every check below and writes
what failed; under pytest, each check is a test that reads the result of all ranks.
"""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from agents import run_ranks
from torch import Tensor

from archzoo.errors import CollectiveError, ShapeError, TopologyError
from archzoo.parallel import Group, Groups, Topology, spread
from archzoo.parallel.distributed import DistributedCommunicator, distributed_factory
from archzoo.parallel.in_process import InProcessWorld
from archzoo.parallel.launch import (
    init_from_torchrun,
    shutdown,
    started_by_torchrun,
)

WORLD = 4
LAYOUTS = (
    Topology(tp=2, pp=2),
    Topology(tp=4, attn_dp=2),
    Topology(pp=4),
    Topology(tp=4, attn_dp=4, ep=2),
)
SHAPES = ((4, 8), (8, 4, 4), (1, 4), (4,), (0, 4), (4, 0))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
NARROW = (torch.float8_e4m3fn, torch.int16, torch.uint8)
"""Of stored weights only: they are sent whole, and nothing is summed."""


# --- checks: (groups of each layout) -> None, on every rank -------------------------------------


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What a rank brings: small integers, exact in every dtype and in every order of summing."""
    numel = torch.Size(shape).numel()
    return ((torch.arange(numel) * 7 + rank * 3) % 11 - 5).reshape(shape).to(dtype)


def same(found: Tensor, wanted: Tensor) -> None:
    assert type(found) is Tensor
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert not found.requires_grad
    assert torch.equal(found, wanted)


def exercise(group: Group, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Every symmetric collective of a group against what one process computes."""
    xs = [value(rank, shape, dtype) for rank in group.ranks]
    mine = xs[group.rank].clone()
    total = torch.stack(xs).sum(0, dtype=dtype)
    same(group.all_reduce(mine), total)
    for dim in range(-len(shape), len(shape)):
        same(group.all_gather(mine, dim), torch.cat(xs, dim))
        if shape[dim] % group.size == 0:
            part = total.tensor_split(group.size, dim)[group.rank]
            same(group.reduce_scatter(mine, dim), part)
    for src in range(group.size):
        same(group.broadcast(mine, src), xs[src])
    same(mine, xs[group.rank])


def every_collective(layouts: list[Groups]) -> None:
    for groups in layouts:
        for name in ("world", "tp", "pp", "attn_tp", "attn_dp", "ep", "moe_tp", "moe"):
            exercise(groups[name], torch.float32, (4, 8))


def every_dtype(layouts: list[Groups]) -> None:
    for dtype in DTYPES:
        exercise(layouts[0]["world"], dtype, (4, 8))


def every_shape(layouts: list[Groups]) -> None:
    for shape in SHAPES:
        exercise(layouts[0]["world"], torch.float32, shape)


def scalars(layouts: list[Groups]) -> None:
    world = layouts[0]["world"]
    same(world.all_reduce(torch.tensor(float(world.rank))), torch.tensor(6.0))
    same(world.broadcast(torch.tensor(world.rank), 3), torch.tensor(3))


def odd_strides(layouts: list[Groups]) -> None:
    world = layouts[0]["world"]
    base = [value(rank, (8, 4), torch.float32).t() for rank in world.ranks]
    same(world.all_reduce(base[world.rank]), sum(base, torch.zeros(4, 8)))
    same(world.all_gather(base[world.rank], 1), torch.cat(base, 1))
    wide = torch.ones(4, 1).expand(4, 8)
    same(world.reduce_scatter(wide, 1), torch.full((4, 2), 4.0))
    same(world.broadcast(wide, 1), wide.contiguous())


def hand_over(layouts: list[Groups]) -> None:
    """Down the pipeline, stage by stage, with an uneven, non-contiguous tensor."""
    for groups in layouts:
        pp = groups["pp"]
        x = value(99, (5, 3), torch.bfloat16).t()
        if pp.rank > 0:
            x = pp.recv(torch.empty(3, 5, dtype=torch.bfloat16), pp.rank - 1)
            same(x, value(99, (5, 3), torch.bfloat16).t() + pp.rank - 1)
        if pp.rank + 1 < pp.size:
            pp.send(x + pp.rank if pp.rank == 0 else x + 1, pp.rank + 1)


def exchanging(layouts: list[Groups]) -> None:
    """Rank i sends rank j (2i + j) % 3 rows: uneven, none to some, and nothing at all."""
    for groups in layouts:
        for name in ("world", "attn_dp", "ep"):
            group = groups[name]
            counts = [[(2 * i + j) % 3 for j in range(group.size)] for i in range(group.size)]
            for dtype in DTYPES if groups is layouts[0] else DTYPES[:1]:
                exchange(group, counts, dtype)
            exchange(group, [[0] * group.size] * group.size, torch.float32)


def exchange(group: Group, counts: list[list[int]], dtype: torch.dtype) -> None:
    if group.size == 1:
        counts = [[len(group.ranks)]]
    sent = [value(rank, (sum(counts[at]), 3), dtype) for at, rank in enumerate(group.ranks)]
    parts = [rows.split(counts[at]) for at, rows in enumerate(sent)]
    me = group.rank
    mine = sent[me].clone()
    wanted = torch.cat([parts[at][me] for at in range(group.size)])
    same(group.all_to_all(mine, counts[me], [row[me] for row in counts]), wanted)
    same(mine, sent[me])


def spreading(layouts: list[Groups]) -> None:
    """Only one rank knows what there is; the others give entries of another kind."""
    tensors = [
        value(7, (3, 5), torch.float64).t(),
        None,
        value(8, (0, 4), torch.bfloat16),
        value(9, (2,), torch.int64),
        torch.tensor(2.5),
        None,
        *[torch.arange(6).view(3, 2).to(dtype).t() for dtype in NARROW],
        torch.ones(1, 2, 1, 2, 1, dtype=torch.bool),
    ]
    for groups in layouts:
        pp = groups["pp"]
        mine = tensors if pp.rank == pp.size - 1 else [torch.ones(1), *[None] * (len(tensors) - 1)]
        for found, wanted in zip(spread(pp, mine, pp.size - 1), tensors, strict=True):
            assert (found is None) == (wanted is None)
            if found is not None and wanted is not None and pp.size > 1:
                same(found, wanted)
    world = layouts[0]["world"]
    assert spread(world, [None, None], 1) == [None, None] and spread(world, [], 0) == []
    for unserved in (torch.ones(2, dtype=torch.complex64), torch.ones([1] * 9)):
        with pytest.raises(ShapeError, match=r"rank 1 has .* cannot be spread.*most 8 dimensions"):
            spread(world, [None, unserved if world.rank == 1 else None], 1)


def no_aliases(layouts: list[Groups]) -> None:
    world = layouts[0]["world"]
    x = torch.ones(4, 4)
    results = (
        world.all_reduce(x),
        world.all_gather(x, 0),
        world.reduce_scatter(x, 0),
        world.broadcast(x, 0),
    )
    for result in results:
        result.fill_(-1)
    assert torch.equal(x, torch.ones(4, 4))
    same(world.all_reduce(x), torch.full((4, 4), 4.0))


def no_gradients(layouts: list[Groups]) -> None:
    x = torch.ones(4, 4, requires_grad=True)
    world = layouts[0]["world"]
    for result in (world.all_reduce(x), world.all_gather(x), world.reduce_scatter(x)):
        assert not result.requires_grad
    same(world.broadcast(x, 0), torch.ones(4, 4))


def inference_tensors(layouts: list[Groups]) -> None:
    with torch.inference_mode():
        exercise(layouts[0]["world"], torch.float32, (4, 8))


def refused_before_entering(layouts: list[Groups]) -> None:
    """Only one rank makes the bad call: had it entered, the next collective would not fit."""
    world = layouts[0]["world"]
    if world.rank == 1:
        with pytest.raises(ShapeError, match=r"dim 0 of shape \[6, 2\].* 4 equal parts"):
            world.reduce_scatter(torch.ones(6, 2), 0)
        with pytest.raises(ShapeError, match=r"shape \[6, 2\] has no dim 2"):
            world.all_gather(torch.ones(6, 2), 2)
        with pytest.raises(ShapeError, match="has no dim -1"):
            world.all_gather(torch.tensor(1.0), -1)
        for send, receive in (([1, 0, 0], [1] * 4), ([1] * 4, [3, 0, 0, -1]), ([1] * 4, [4])):
            with pytest.raises(ShapeError, match=r"4 ranks, those to send adding up"):
                world.all_to_all(torch.ones(4, 2), send, receive)
        with pytest.raises(ShapeError, match=r"shape \[3, 2\]"):
            world.all_to_all(torch.ones(3, 2), [1] * 4, [1] * 4)
        with pytest.raises(CollectiveError, match="rank 4 is outside a group of 4"):
            world.broadcast(torch.ones(1), 4)
        with pytest.raises(CollectiveError, match="rank -1 is outside"):
            world.recv(torch.ones(1), -1)
        with pytest.raises(CollectiveError, match="rank 1 of the group is the caller itself"):
            world.send(torch.ones(1), 1)
    same(world.all_reduce(torch.ones(2)), torch.full((2,), 4.0))


CHECKS: tuple[Callable[[list[Groups]], None], ...] = (
    every_collective,
    every_dtype,
    every_shape,
    scalars,
    odd_strides,
    hand_over,
    exchanging,
    spreading,
    no_aliases,
    no_gradients,
    inference_tensors,
    refused_before_entering,
)


# --- checks of the processes alone ---------------------------------------------------------------


def pickled_group(layouts: list[Groups]) -> None:
    group = pickle.loads(pickle.dumps(layouts[0]["tp"]))
    assert group == layouts[0]["tp"] and group.comm is not None
    exercise(group, torch.float32, (4, 8))


def start_up(layouts: list[Groups]) -> None:
    assert started_by_torchrun()
    rank = layouts[0]["world"].rank
    assert init_from_torchrun(Topology(tp=4)) == Topology(tp=4, rank=rank), "a second call joins"
    with pytest.raises(TopologyError, match=r"4 processes .* tp=3 x pp=1 = 3.*nproc-per-node 3"):
        init_from_torchrun(Topology(tp=3))
    with pytest.raises(TopologyError, match="the topology says rank"):
        distributed_factory(Topology(tp=4, rank=(rank + 1) % 4))
    with pytest.raises(TopologyError, match=r"rank \d of 4, the topology says rank 0 of 2"):
        distributed_factory(Topology(tp=2))


def groups_are_shared(layouts: list[Groups]) -> None:
    """Equal ranks, one process group, whatever the name; other ranks, another."""

    def handle(group: Group) -> str:
        assert isinstance(group.comm, DistributedCommunicator)
        return group.comm.handle

    groups = layouts[0]
    assert handle(groups["tp"]) == handle(groups["attn_tp"]) != handle(groups["pp"])
    rank = groups["world"].rank
    factory = distributed_factory(LAYOUTS[0].at(rank))
    with pytest.raises(TopologyError, match=r"group 'odd' of ranks \(0, 3\)"):
        factory("odd", (0, 3), 0)


def lost_peer(layouts: list[Groups]) -> None:
    """Last check: rank 3 leaves, the others are told in which collective that hurt."""
    world = layouts[0]["world"]
    if world.rank == 3:
        shutdown()
        return
    with pytest.raises(CollectiveError, match=r"all_reduce over group 'world' of ranks \(0, 1, 2"):
        for _ in range(3):
            world.all_reduce(torch.ones(4))


PROCESS_CHECKS = (pickled_group, start_up, groups_are_shared, lost_peer)


def run_rank(folder: Path) -> None:
    """One gloo rank: every check, in one order on all ranks."""
    rank = init_from_torchrun(LAYOUTS[0]).rank
    layouts = [Groups.of(t.at(rank), distributed_factory(t.at(rank))) for t in LAYOUTS]
    failures: dict[str, str] = {}
    for check in (*CHECKS, *PROCESS_CHECKS):
        try:
            check(layouts)
        except BaseException:
            failures[check.__name__] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(failures))


# --- pytest --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """What failed on each gloo rank, by check."""
    folder = tmp_path_factory.mktemp("gloo")
    ended = run_ranks(__file__, folder, WORLD)
    assert [each.code for each in ended] == [0] * WORLD, "\n".join(each.output for each in ended)
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)}


@pytest.mark.parametrize("check", [*CHECKS, *PROCESS_CHECKS], ids=lambda check: check.__name__)
def test_over_gloo(
    check: Callable[[list[Groups]], None], failures: dict[int, dict[str, str]]
) -> None:
    found = {rank: by_check.get(check.__name__) for rank, by_check in failures.items()}
    assert not any(found.values()), "\n".join(f"rank {r}: {text}" for r, text in found.items())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_over_threads(check: Callable[[list[Groups]], None]) -> None:
    world = InProcessWorld(WORLD)
    world.run(lambda rank: check([Groups.of(t.at(rank), world.factory(rank)) for t in LAYOUTS]))


def test_a_compiled_step_traces_through(tmp_path: Path) -> None:
    """One graph, no break: the collectives are operators the compiler knows."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        comm = DistributedCommunicator("tp", (0,), 0, dist.group.WORLD.group_name)

        def step(x: Tensor) -> Tensor:
            x = comm.all_reduce(x * 2)
            x = comm.reduce_scatter(comm.all_gather(x, 1), 1)
            return comm.broadcast(comm.all_to_all(x, [2], [2]), 0) + 1

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        same(compiled(torch.ones(2, 4)), torch.full((2, 4), 3.0))
    finally:
        shutdown()


def test_factory_needs_a_process_group() -> None:
    shutdown()  # nothing to leave: no error
    with pytest.raises(TopologyError, match="no process group: start with torchrun"):
        distributed_factory(replace(LAYOUTS[0]))


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
