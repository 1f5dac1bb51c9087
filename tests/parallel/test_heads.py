from __future__ import annotations

from itertools import product

import pytest

from archzoo.errors import ShapeError
from archzoo.parallel import Group, HeadLayout, divide, shape_only


def layouts_of(heads: int, kv: int, size: int) -> list[HeadLayout]:
    return [HeadLayout.of(heads, kv, shape_only(size, rank)) for rank in range(size)]


def fits(heads: int, kv: int, size: int) -> bool:
    return heads % kv == 0 and heads % size == 0 and (kv % size == 0 or size % kv == 0)


ALL = [(h, k, p) for h in range(1, 17) for k in range(1, h + 1) for p in range(1, 17)]
GOOD = [case for case in ALL if fits(*case)]


def test_brute_force_every_layout_or_a_named_refusal() -> None:
    for heads, kv, size in ALL:
        if fits(heads, kv, size):
            layouts_of(heads, kv, size)
        else:
            with pytest.raises(ShapeError) as caught:
                layouts_of(heads, kv, size)
            text = str(caught.value)
            assert "num_attention_heads" in text or "num_key_value_heads" in text


def test_query_heads_partition_the_heads() -> None:
    for heads, kv, size in GOOD:
        held = [
            head
            for layout in layouts_of(heads, kv, size)
            for head in range(layout.first_head, layout.first_head + layout.num_heads)
        ]
        assert held == list(range(heads))


def test_every_kv_head_is_held_by_its_replicas() -> None:
    for heads, kv, size in GOOD:
        copies = [0] * kv
        for layout in layouts_of(heads, kv, size):
            for head in range(layout.first_kv_head, layout.first_kv_head + layout.num_kv_heads):
                copies[head] += 1
        assert copies == [layouts_of(heads, kv, size)[0].num_kv_head_replicas] * kv
        assert copies[0] == max(1, size // kv)


def test_query_heads_find_their_own_kv_head_on_their_rank() -> None:
    """Attention here pairs local query head i with local KV head i // (N / K)."""
    for heads, kv, size in GOOD:
        for layout in layouts_of(heads, kv, size):
            assert layout.num_heads % layout.num_kv_heads == 0
            local_ratio = layout.num_heads // layout.num_kv_heads
            for i in range(layout.num_heads):
                wanted = (layout.first_head + i) // (heads // kv)
                assert layout.first_kv_head + i // local_ratio == wanted


def test_replicas_are_neighbours() -> None:
    layouts = layouts_of(8, 2, 8)
    assert [layout.first_kv_head for layout in layouts] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {layout.num_kv_head_replicas for layout in layouts} == {4}
    assert {layout.num_kv_heads for layout in layouts} == {1}


def test_smollm2_splits_by_three_and_not_by_two() -> None:
    assert [(x.num_heads, x.num_kv_heads, x.first_kv_head) for x in layouts_of(9, 3, 3)] == [
        (3, 1, 0),
        (3, 1, 1),
        (3, 1, 2),
    ]
    with pytest.raises(ShapeError) as caught:
        HeadLayout.of(9, 3, shape_only(2), where="model.layers.0.self_attn")
    text = str(caught.value)
    assert text.startswith("model.layers.0.self_attn: 9 query heads (num_attention_heads)")
    assert "tp=2 ranks" in text and "divides 9" in text


def test_kv_heads_that_fit_nowhere_name_both_counts_and_the_ranks() -> None:
    with pytest.raises(ShapeError) as caught:
        HeadLayout.of(24, 6, shape_only(4, name="attn_tp"), where="model.layers.3.self_attn")
    text = str(caught.value)
    assert text.startswith("model.layers.3.self_attn: 6 KV heads (num_key_value_heads)")
    assert "attn_tp=4 ranks (24 query heads)" in text and "divides 6 or is a multiple" in text


@pytest.mark.parametrize(("heads", "kv"), [(9, 2), (4, 8), (0, 1), (4, 0), (-4, 2), (4, -2)])
def test_heads_are_a_multiple_of_kv_heads(heads: int, kv: int) -> None:
    expected = f"num_attention_heads={heads} .* num_key_value_heads={kv}; correct the config"
    with pytest.raises(ShapeError, match=expected):
        HeadLayout.of(heads, kv, shape_only(1))


def test_kv_heads_may_use_a_group_of_their_own() -> None:
    layout = HeadLayout.of(8, 2, shape_only(4, 3), shape_only(2, 1, "kv"))
    assert (layout.num_heads, layout.first_head) == (2, 6)
    assert (layout.num_kv_heads, layout.first_kv_head, layout.num_kv_head_replicas) == (1, 1, 1)


@pytest.mark.parametrize(
    ("heads", "kv", "group", "kv_group"),
    [
        (8, 4, shape_only(1), shape_only(2, 1, "kv")),
        (8, 4, shape_only(2, 1), shape_only(1)),
        (8, 4, shape_only(2, 0), shape_only(2, 1, "kv")),
        (8, 4, shape_only(4, 3), shape_only(2, 1, "kv")),
        (8, 2, shape_only(4, 1), shape_only(2, 1, "attn_tp")),
    ],
)
def test_kv_heads_of_other_query_heads_are_refused(
    heads: int, kv: int, group: Group, kv_group: Group
) -> None:
    with pytest.raises(ShapeError, match="which need KV heads"):
        HeadLayout.of(heads, kv, group, kv_group)


def test_two_groups_are_taken_exactly_when_every_query_head_finds_its_kv_head() -> None:
    for heads, kv, size, kv_size in product((4, 8), (1, 2, 4), (1, 2, 4), (1, 2, 4, 8)):
        for rank, kv_rank in product(range(size), range(kv_size)):
            own = {h * kv // heads for h in range(heads) if h * size // heads == rank}
            held = {k for k in range(kv) if k in range_of(kv, kv_size, kv_rank)}
            groups = shape_only(size, rank), shape_only(kv_size, kv_rank, "kv")
            if own == held:
                HeadLayout.of(heads, kv, *groups)
            else:
                with pytest.raises(ShapeError, match="which need KV heads"):
                    HeadLayout.of(heads, kv, *groups)


def range_of(kv: int, size: int, rank: int) -> range:
    """KV heads of a rank, written down another way: its share of the heads, rounded outwards."""
    return range(rank * kv // size, -(-(rank + 1) * kv // size))


def test_the_refusal_names_both_sets_and_both_groups() -> None:
    groups = shape_only(2, 1), shape_only(1, 0, "none")
    with pytest.raises(ShapeError) as caught:
        HeadLayout.of(8, 4, *groups, where="layers.0.self_attn")
    assert str(caught.value).startswith(
        "layers.0.self_attn: rank 1 of tp=2 holds query heads 4 to 7, which need KV heads [2, 3], "
        "but rank 0 of none=1 holds KV heads [0, 1, 2, 3] (8 query heads, 4 KV heads); split KV "
        "heads over tp too"
    )


def test_divide() -> None:
    assert divide(12, shape_only(3), "intermediate_size") == 4
    assert divide(0, shape_only(3), "rows") == 0
    with pytest.raises(ShapeError) as caught:
        divide(7, shape_only(3), "intermediate_size", "model.layers.1.mlp")
    assert str(caught.value).startswith(
        "model.layers.1.mlp: intermediate_size=7 cannot be split over tp=3 ranks"
    )
