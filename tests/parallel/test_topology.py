from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator

import pytest

from archzoo.errors import CollectiveError, TopologyError
from archzoo.parallel import GROUP_NAMES, Group, Groups, Topology, shape_only


def layouts() -> Iterator[Topology]:
    for tp, pp in itertools.product(range(1, 9), range(1, 5)):
        for attn_dp in range(1, tp + 1):
            if tp % attn_dp == 0:
                yield Topology(tp=tp, pp=pp, attn_dp=attn_dp)
    for tp, ep, attn_dp in itertools.product((2, 6, 8), (2, 3, 4, 8), (1, 2, 4)):
        if tp % ep == 0 and tp % attn_dp == 0:
            yield Topology(tp=tp, pp=2, attn_dp=attn_dp, ep=ep)


def test_every_group_name_partitions_the_world() -> None:
    for sizes in layouts():
        world = list(range(sizes.world_size))
        for name in GROUP_NAMES:
            seen = {sizes.at(rank).ranks_of(name) for rank in world}
            assert sorted(rank for ranks in seen for rank in ranks) == world
            for rank in world:
                ranks = sizes.at(rank).ranks_of(name)
                assert rank in ranks and list(ranks) == sorted(ranks)


def test_group_sizes_and_places() -> None:
    for sizes in layouts():
        for rank in range(sizes.world_size):
            here = sizes.at(rank)
            size = {name: len(here.ranks_of(name)) for name in GROUP_NAMES}
            assert size == {
                "world": sizes.tp * sizes.pp,
                "pp": sizes.pp,
                "tp": sizes.tp,
                "attn_tp": sizes.tp // sizes.attn_dp,
                "attn_dp": sizes.attn_dp,
                "ep": sizes.ep,
                "moe_tp": sizes.tp // sizes.ep,
                "moe": sizes.tp if sizes.ep == 1 else sizes.tp // sizes.attn_dp,
                "none": 1,
            }
            place = {name: here.ranks_of(name).index(rank) for name in GROUP_NAMES}
            assert place["pp"] == here.pp_rank and place["tp"] == here.tp_rank
            assert place["attn_tp"] == here.attn_tp_rank
            assert place["attn_dp"] == here.attn_dp_rank
            assert rank == here.pp_rank * sizes.tp + here.tp_rank
            assert here.tp_rank == here.attn_dp_rank * here.attn_tp + here.attn_tp_rank
            assert here.tp_rank == place["ep"] * here.moe_tp + place["moe_tp"]


def test_attention_groups_are_inside_a_stage_and_cross_in_one_rank() -> None:
    for sizes in layouts():
        for rank in range(sizes.world_size):
            here = sizes.at(rank)
            attn_tp, attn_dp = set(here.ranks_of("attn_tp")), set(here.ranks_of("attn_dp"))
            assert attn_tp & attn_dp == {rank}
            assert attn_tp | attn_dp <= set(here.ranks_of("tp"))


def test_ranks_are_numbered_stage_by_stage() -> None:
    here = Topology(tp=4, pp=2, attn_dp=2, rank=6)
    assert here.ranks_of("tp") == (4, 5, 6, 7)
    assert here.ranks_of("pp") == (2, 6)
    assert here.ranks_of("attn_tp") == (6, 7)
    assert here.ranks_of("attn_dp") == (4, 6)
    assert here.ranks_of("none") == (6,)


@pytest.mark.parametrize("axis", ["attn_dp", "ep"])
def test_axes_inside_a_stage_divide_it(axis: str) -> None:
    for tp, part in itertools.product(range(1, 9), range(1, 10)):
        if tp % part == 0:
            assert getattr(Topology(tp=tp, **{axis: part}), axis) == part
        else:
            with pytest.raises(TopologyError, match=f"{axis}={part} does not divide tp={tp}"):
                Topology(tp=tp, **{axis: part})


@pytest.mark.parametrize("axis", ["tp", "pp", "attn_dp", "ep"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "2", None, True])
def test_sizes_are_positive_integers(axis: str, value: object) -> None:
    with pytest.raises(TopologyError, match=f"{axis}=.* must be an integer >= 1"):
        Topology(**{axis: value})  # type: ignore[arg-type]  # the wrong types are the point


def test_rank_is_inside_the_world() -> None:
    with pytest.raises(TopologyError, match=r"rank 6 is outside a world of 6 \(tp=3 x pp=2\)"):
        Topology(tp=3, pp=2, rank=6)
    with pytest.raises(TopologyError, match="rank=-1 must be an integer >= 0"):
        Topology(rank=-1)
    with pytest.raises(TopologyError, match="rank 1 is outside"):
        Topology().at(1)


def test_unknown_group() -> None:
    with pytest.raises(TopologyError, match="no group 'tensor'; groups are world, pp, tp"):
        Topology().ranks_of("tensor")


def test_groups_of_one_rank_have_no_communicator_and_need_none() -> None:
    asked: list[tuple[str, tuple[int, ...], int]] = []

    def factory(name: str, ranks: tuple[int, ...], index: int) -> None:
        asked.append((name, ranks, index))

    groups = Groups.of(Topology(tp=3, rank=2), factory)
    assert asked == [(name, (0, 1, 2), 2) for name in ("world", "tp", "attn_tp", "moe_tp", "moe")]
    assert groups["pp"] == Group("pp", (2,), 0) and groups["pp"].size == 1
    assert set(groups.by_name) == set(GROUP_NAMES)
    with pytest.raises(CollectiveError, match="no group 'cp' here; this rank has attn_dp"):
        groups["cp"]


def test_a_group_for_shapes_says_so_when_run() -> None:
    import torch

    x = torch.ones(2)
    alone = shape_only(1)
    for result in (
        alone.all_reduce(x),
        alone.all_gather(x),
        alone.reduce_scatter(x),
        alone.broadcast(x),
    ):
        assert result is x
    group = shape_only(3, 1, "attn_tp")
    assert (group.size, group.rank, group.ranks) == (3, 1, (0, 1, 2))
    for call in (
        lambda: group.all_reduce(x),
        lambda: group.all_gather(x),
        lambda: group.reduce_scatter(x),
        lambda: group.broadcast(x),
        lambda: group.send(x, 0),
        lambda: group.recv(x, 0),
    ):
        with pytest.raises(CollectiveError, match=r"group 'attn_tp' of 3 ranks .* for shapes only"):
            call()


def test_data_pickles() -> None:
    sizes = Topology(tp=4, pp=2, attn_dp=2, rank=5)
    assert pickle.loads(pickle.dumps(sizes)) == sizes
    groups = Groups.of(sizes)
    assert pickle.loads(pickle.dumps(groups)) == groups
    assert hash(groups["tp"]) == hash(Groups.of(sizes)["tp"])
