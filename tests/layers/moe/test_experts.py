"""Sorted blocks against expert by expert, and ranks against one rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from packers import PACKERS
from torch import Tensor

from archzoo.context import BuildContext
from archzoo.errors import ShapeError
from archzoo.layers.moe import Experts, Routes, reference_experts
from archzoo.parallel import Topology, box_slices
from archzoo.quantization import UnquantizedConfig
from archzoo.quantization.packing import WeightPacker
from archzoo.quantization.unquantized_experts import UnquantizedExpertsMethod
from ranks import on_ranks

E, D, F, K = 5, 12, 8, 3
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 6e-2}


def weights(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    gate_up, down = (
        torch.randn(E, 2 * F, D, generator=generator),
        torch.randn(E, D, F, generator=generator),
    )
    return gate_up.div(3).to(dtype), down.div(3).to(dtype)


def experts(ctx: BuildContext, prefix: str = "m.experts") -> Experts:
    """Filled from the stacked tensors, then as the loader leaves it."""
    layer = Experts(E, D, F, ctx=ctx, prefix=prefix)
    for linear, source in zip(
        (layer.gate_up_proj, layer.down_proj), weights(ctx.dtype), strict=True
    ):
        weight = linear.weight
        for piece in weight.shard_spec.segment(None).pieces:
            weight.data[box_slices(piece.target)] = source[box_slices(piece.source)]
        assert not weight.isnan().any()
        linear.quant_method.process_weights_after_loading(linear)
    return layer


def scattered(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.rand(rows, E, generator=generator).argsort(-1)[:, :K]


ROUTES: dict[str, Callable[[], Tensor]] = {
    "scattered": lambda: scattered(17),
    "one row": lambda: scattered(1),
    "no rows": lambda: scattered(0),
    "all rows to the same": lambda: torch.tensor([4, 0, 2]).expand(9, K),
    "some experts unasked": lambda: torch.tensor([[3, 2, 1], [1, 3, 2]]),
    "many rows": lambda: scattered(600),
}


def case(name: str, dtype: torch.dtype) -> tuple[Tensor, Routes]:
    chosen = ROUTES[name]()
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(len(chosen), D, generator=generator).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return x, Routes(chosen, torch.rand(chosen.shape, generator=generator).to(wide))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", ROUTES)
def test_blocks_give_what_one_expert_after_the_other_gives(name: str, dtype: torch.dtype) -> None:
    x, routes = case(name, dtype)
    given = experts(BuildContext.of(dtype=dtype))(x, routes)
    wanted = reference_experts(x, routes, *weights(dtype))
    assert given.dtype is dtype and given.shape == x.shape
    torch.testing.assert_close(given, wanted, rtol=0, atol=TOLERANCE[dtype])


def test_padded_rows_of_nan_reach_no_other_row() -> None:
    x, routes = case("scattered", torch.float32)
    layer = experts(BuildContext.of())
    clean = layer(x, routes)
    x[5:9] = torch.nan
    routes.weights[5:9] = torch.nan
    given = layer(x, routes)
    assert given[5:9].isnan().all()
    assert torch.equal(given[:5], clean[:5]) and torch.equal(given[9:], clean[9:])


def test_a_row_gets_the_same_alone_and_among_others() -> None:
    x, routes = case("scattered", torch.float64)
    layer = experts(BuildContext.of(dtype=torch.float64))
    together = layer(x, routes)
    for at in range(len(x)):
        one = layer(x[at : at + 1], Routes(*(each[at : at + 1] for each in routes)))
        torch.testing.assert_close(one, together[at : at + 1], rtol=0, atol=1e-13)


LAYOUTS = [
    Topology(tp=tp, attn_dp=attn_dp, ep=ep)
    for tp, attn_dp, ep in (
        (2, 1, 1), (2, 1, 2), (4, 1, 2), (4, 1, 4), (8, 1, 2),
        (2, 2, 2), (4, 2, 1), (4, 2, 2), (4, 2, 4), (4, 4, 2), (4, 4, 4), (8, 2, 4), (8, 4, 2),
    )
]  # fmt: skip


@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda t: f"tp{t.tp}-dp{t.attn_dp}-ep{t.ep}")
@pytest.mark.parametrize("spread", [(17,), (5, 0, 11, 1), (0, 0, 0, 1), (0, 0, 0, 0)], ids=str)
def test_every_layout_gives_what_one_rank_gives(sizes: Topology, spread: tuple[int, ...]) -> None:
    """Each attention group has rows of its own; they are exchanged where experts are dealt out."""
    if len(spread) == 1:
        counts = spread * sizes.attn_dp
    else:
        counts = spread[-sizes.attn_dp :]
    x, routes = case("many rows", torch.float64)
    wanted = reference_experts(x, routes, *weights(torch.float64))
    starts = [sum(counts[:at]) for at in range(sizes.attn_dp)]

    def run(ctx: BuildContext) -> None:
        here, rows = ctx.topology, slice(0, sum(counts))
        if here.ep > 1:
            at = here.attn_dp_rank
            rows = slice(starts[at], starts[at] + counts[at])
        layer = experts(ctx)
        given = layer(x[rows], Routes(routes.experts[rows], routes.weights[rows]))
        assert (layer.exchange is None) == (here.ep == 1 or here.attn_dp == 1)
        whole = ctx.group("moe").all_reduce(given)
        torch.testing.assert_close(whole, wanted[rows], rtol=0, atol=1e-12)

    on_ranks(sizes, run, torch.float64)


def test_rows_of_nan_travel_without_harm() -> None:
    x, routes = case("scattered", torch.float32)
    x[3], routes.weights[3] = torch.nan, torch.nan
    wanted = reference_experts(x, routes, *weights(torch.float32))

    def run(ctx: BuildContext) -> None:
        rows = slice(0, 9) if ctx.topology.attn_dp_rank == 0 else slice(9, 17)
        given = experts(ctx)(x[rows], Routes(routes.experts[rows], routes.weights[rows]))
        torch.testing.assert_close(given, wanted[rows], rtol=0, atol=2e-5, equal_nan=True)

    on_ranks(Topology(tp=2, attn_dp=2, ep=2), run)


def test_a_row_travels_once_to_a_rank_and_not_at_all_where_nobody_is_asked() -> None:
    """Two experts of one rank: one copy of the row goes there, none elsewhere."""
    moved = []

    def run(ctx: BuildContext) -> None:
        layer = experts(ctx)
        assert layer.exchange is not None
        chosen = torch.tensor([[0, 1, 2]] * 4 if ctx.topology.rank else [[4, 3, 4]] * 6)
        seen = []

        def watched(x: Tensor, routes: Routes) -> Tensor:
            seen.append(len(x))
            return layer.compute(x, routes)

        rows = torch.randn(len(chosen), D)
        layer.exchange.run(rows, Routes(chosen, torch.ones(chosen.shape)), watched)
        moved.append((ctx.topology.rank, *seen))

    on_ranks(Topology(tp=2, attn_dp=2, ep=2), run)
    assert sorted(moved) == [(0, 4), (1, 6)]


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ShapeError, match=r"m\.experts: num_experts=5 .* ep=8"):
        Experts(E, D, F, ctx=BuildContext.of(Topology(tp=8, ep=8)), prefix="m.experts")
    with pytest.raises(ShapeError, match=r"moe_intermediate_size=8.* moe_tp=3"):
        Experts(E, D, F, ctx=BuildContext.of(Topology(tp=6, ep=2)), prefix="m.experts")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
def test_packed_matrices_multiply_and_give_their_values_back(
    packer: WeightPacker, dtype: torch.dtype
) -> None:
    layer = experts(BuildContext.of(dtype=dtype, quant=UnquantizedConfig(packer)))
    x, routes = case("scattered", dtype)
    wanted = reference_experts(x, routes, *weights(dtype))
    torch.testing.assert_close(layer(x, routes), wanted, rtol=0, atol=TOLERANCE[dtype])
    for linear, matrices in zip((layer.gate_up_proj, layer.down_proj), weights(dtype), strict=True):
        method = linear.quant_method
        assert isinstance(method, UnquantizedExpertsMethod)
        assert bool(method.packed) is linear.weight.is_meta is packer.serves(matrices)
        assert torch.equal(method.plain_values(linear, "weight"), matrices)
        method.restore_weights_before_loading(linear)
        assert torch.equal(linear.weight, matrices) and not method.packed
        assert torch.equal(method.plain_values(linear, "weight"), matrices)
