"""The residual stream pays every debt once, and refuses what would lose or double one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from archzoo.boundary import ResidualStream, StageBoundary
from archzoo.context import BuildContext
from archzoo.errors import BoundaryError
from archzoo.layers import RMSNorm, RowParallelLinear
from archzoo.parallel import Topology, shape_only
from ranks import on_ranks


def norm_of(ctx: BuildContext) -> RMSNorm:
    norm = RMSNorm(4, ctx=ctx, prefix="norm")
    norm.weight.data.fill_(1)
    return norm


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_stages_sum_partials_into_the_residual(tp: int) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    parts = torch.randn(2, tp, 3, 4, dtype=torch.float64)

    def run(ctx: BuildContext) -> tuple[Tensor, Tensor, Tensor]:
        group, norm = ctx.group("tp"), norm_of(ctx)
        first = StageBoundary(norm, group, nn.Identity(), "attn")
        second = StageBoundary(norm, group, nn.Identity(), "mlp")
        stream = ResidualStream(x)
        one = first.prepare(stream)
        first.finish(stream, parts[0, group.rank])
        two = second.prepare(stream)
        second.finish(stream, parts[1, group.rank])
        return one, two, stream.read(norm)

    for one, two, last in on_ranks(Topology(tp=tp), run, torch.float64):
        for got, total in (
            (one, x),
            (two, x + parts[0].sum(0)),
            (last, x + parts.sum((0, 1))),
        ):
            want = total / (total.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
            torch.testing.assert_close(got, want)


def test_settled_pays_once() -> None:
    stream = ResidualStream(torch.ones(1, 4))
    stream.owe(torch.full((1, 4), 2.0), shape_only(1), "attn")
    assert (stream.settled() == 3).all() and (stream.settled() == 3).all()


def test_two_unread_outputs_are_refused_by_name() -> None:
    stream = ResidualStream(torch.ones(1, 4))
    stream.owe(torch.ones(1, 4), shape_only(1), "model.layers.0.self_attn")
    with pytest.raises(BoundaryError, match=r"layers\.0\.mlp.*layers\.0\.self_attn.*unread"):
        stream.owe(torch.ones(1, 4), shape_only(1), "model.layers.0.mlp")


def test_interleaved_forwards_keep_their_streams_apart() -> None:
    boundary = StageBoundary(norm_of(BuildContext.of()), shape_only(1), nn.Identity(), "attn")
    one, two = ResidualStream(torch.ones(1, 4)), ResidualStream(torch.zeros(2, 4))
    boundary.prepare(one)
    boundary.prepare(two)
    boundary.finish(one, torch.ones(1, 4))
    boundary.finish(two, torch.full((2, 4), 5.0))
    assert (one.settled() == 2).all() and (two.settled() == 5).all()


def test_a_linear_that_sums_itself_is_refused_under_a_boundary() -> None:
    ctx = BuildContext.of()
    compute = nn.Module()
    compute.o_proj = RowParallelLinear(4, 4, ctx=ctx, prefix="o_proj")
    with pytest.raises(BoundaryError, match=r"layers\.0\.self_attn\.o_proj.*reduce_results=False"):
        StageBoundary(norm_of(ctx), ctx.group("tp"), compute, "layers.0.self_attn")
