"""Boundaries on a stack: every debt is paid once, and what would lose or double one is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from archzoo.boundary import (
    ResidualStream,
    StageBoundary,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_own,
    declare_parallel,
)
from archzoo.context import BuildContext
from archzoo.errors import BoundaryError, TopologyError
from archzoo.layers import RMSNorm, RowParallelLinear
from archzoo.models.layer_stack import LayerStack
from archzoo.parallel import Group, Topology
from archzoo.parallel.rows import GroupRows
from ranks import on_ranks, with_groups

D = 4
LAYER = (declare_attn(), declare_ffn())
ROWS = GroupRows((3,), (3,), (3,))


def norm_of(ctx: BuildContext) -> RMSNorm:
    norm = RMSNorm(D, ctx=ctx, prefix="norm")
    norm.weight.data.fill_(1)
    return norm


def normed(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def boundaries(
    ctx: BuildContext, layer_id: int = 0, facts: Sequence[StageFacts] = LAYER
) -> list[StageBoundary]:
    where = f"model.layers.{layer_id}"
    return [
        StageBoundary(each, nn.Identity(), norm=norm_of(ctx), where=f"{where}.{each.name}")
        for each in facts
    ]


def stack_of(
    ctx: BuildContext, layers: int = 1
) -> tuple[LayerStack, list[StageBoundary], StageBoundary]:
    """A closed stack, its boundaries, and that of the head."""
    made: list[StageBoundary] = []
    with LayerStack([LAYER] * layers, declare_head(), ctx=ctx, hidden_size=D) as stack:
        for layer_id in stack.here:
            mine = boundaries(ctx, layer_id)
            stack.append_stages(layer_id, mine)
            made += mine
        head = StageBoundary(declare_head(), {}, norm=norm_of(ctx), where="model.norm")
        stack.append_head(head)
    return stack, made, head


@pytest.mark.parametrize("plan", ["cheapest", "naive"])
@pytest.mark.parametrize("tp", [1, 2, 3])
def test_stages_sum_partials_into_the_residual(tp: int, plan: str) -> None:
    x = torch.randn(6, D, dtype=torch.float64)
    parts = torch.randn(2, tp, 6, D, dtype=torch.float64)

    def run(ctx: BuildContext) -> tuple[Tensor, Tensor, Tensor]:
        stack, (first, second), head = stack_of(ctx)
        stream = stack.begin(x, stack.book.rows((6,), (6,)))
        rank = ctx.group("tp").rank
        one = first.prepare(stream)
        first.finish(stream, parts[0, rank])
        two = second.prepare(stream)
        second.finish(stream, parts[1, rank])
        return one, two, head.read(stream)

    for one, two, last in on_ranks(Topology(tp=tp), run, torch.float64):
        torch.testing.assert_close(one, normed(x))
        torch.testing.assert_close(two, normed(x + parts[0].sum(0)))
        torch.testing.assert_close(last, normed(x + parts.sum((0, 1))))


# --- the order of a forward -----------------------------------------------------------------------


def begun(layers: int = 1) -> tuple[ResidualStream, list[StageBoundary], StageBoundary]:
    stack, made, head = stack_of(BuildContext.of(), layers)
    return stack.begin(torch.ones(3, D), ROWS), made, head


def test_prepare_twice_is_refused_by_name() -> None:
    stream, (attn, mlp), _ = begun()
    attn.prepare(stream)
    with pytest.raises(
        BoundaryError, match=r"layers\.0\.mlp: prepare\(\) while the output of .*attn"
    ):
        mlp.prepare(stream)


def test_finish_without_prepare_is_refused() -> None:
    stream, (attn, mlp), _ = begun()
    with pytest.raises(BoundaryError, match=r"layers\.0\.attn: finish\(\) without prepare"):
        attn.finish(stream, torch.ones(3, D))
    attn.prepare(stream)
    attn.finish(stream, torch.ones(3, D))
    with pytest.raises(BoundaryError, match="without prepare"):
        attn.finish(stream, torch.ones(3, D))
    mlp.prepare(stream)
    with pytest.raises(BoundaryError, match="2 outputs for 1 branches"):
        mlp.finish(stream, torch.ones(3, D), torch.ones(3, D))


def test_stages_out_of_order_are_refused() -> None:
    stream, (_, mlp, attn, _), head = begun(layers=2)
    for other, number in ((mlp, 1), (attn, 2)):
        with pytest.raises(BoundaryError, match=f"is stage {number} of the stack.*before stage 0"):
            other.prepare(stream)
    with pytest.raises(BoundaryError, match=r"model\.norm is stage 4"):
        head.read(stream)


def test_interleaved_forwards_keep_their_streams_apart() -> None:
    stack, (attn, mlp), head = stack_of(BuildContext.of(dtype=torch.float64))
    x = torch.randn(2, 3, D, dtype=torch.float64)
    streams = [stack.begin(rows, ROWS) for rows in x]
    for boundary, factor in ((attn, 2.0), (mlp, 5.0)):
        for stream in streams:
            boundary.finish(stream, boundary.prepare(stream) * factor)
    for stream, rows in zip(streams, x, strict=True):
        after = rows + 2 * normed(rows)
        torch.testing.assert_close(head.read(stream), normed(after + 5 * normed(after)))


# --- building -------------------------------------------------------------------------------------


def open_stack(ctx: BuildContext, layers: int = 1) -> LayerStack:
    return LayerStack([LAYER] * layers, declare_head(), ctx=ctx, hidden_size=D)


def test_unbound_boundary_cannot_be_used() -> None:
    stream, _, _ = begun()
    loose = boundaries(BuildContext.of())[0]
    for use in (lambda: loose.prepare(stream), lambda: loose.finish(stream, torch.ones(3, D))):
        with pytest.raises(
            BoundaryError, match=r"layers\.0\.attn.*used before its stack is closed"
        ):
            use()


def test_appending_after_close_and_twice_is_refused() -> None:
    ctx = BuildContext.of()
    stack, _, _ = stack_of(ctx)
    with pytest.raises(BoundaryError, match="layer 0 is appended to a closed stack"):
        stack.append_stages(0, boundaries(ctx))
    stack = open_stack(ctx)
    stack.append_stages(0, boundaries(ctx))
    with pytest.raises(BoundaryError, match="layer 0 is appended twice"):
        stack.append_stages(0, boundaries(ctx))


def test_layer_that_differs_from_its_facts_is_refused() -> None:
    ctx = BuildContext.of()
    for facts in ((declare_attn(post=True), declare_ffn()), LAYER[:1], LAYER[::-1]):
        built = [
            StageBoundary(
                each, nn.Identity(), norm=norm_of(ctx), post=norm_of(ctx) if each.branches[0].post
                else None, where="x",
            )
            for each in facts
        ]  # fmt: skip
        with pytest.raises(BoundaryError, match="layer 0 was built with stages.*stage_facts say"):
            open_stack(ctx).append_stages(0, built)


def test_missing_layer_or_head_is_refused_at_close() -> None:
    ctx = BuildContext.of()
    stack = open_stack(ctx, layers=2)
    stack.append_stages(1, boundaries(ctx, 1))
    with pytest.raises(BoundaryError, match=r"stages \[0, 1, 4\] \(attn, mlp, head\)"):
        stack.close()


def test_failure_while_building_is_not_hidden_by_the_close() -> None:
    with pytest.raises(RuntimeError, match="weights"), open_stack(BuildContext.of()):
        raise RuntimeError("weights")


def test_layers_of_another_pipeline_stage_are_refused() -> None:
    ctx = BuildContext.of(Topology(pp=2))
    stack = open_stack(ctx, layers=2)
    with pytest.raises(BoundaryError, match="layer 1 .*holds layers 0 to 0"):
        stack.append_stages(1, boundaries(ctx, 1))
    head = StageBoundary(declare_head(), {}, norm=norm_of(ctx), where="model.norm")
    with pytest.raises(BoundaryError, match="before the last pipeline stage"):
        stack.append_head(head)


def linear(ctx: BuildContext, group: str, *, reduce_results: bool) -> nn.Module:
    compute = nn.Module()
    compute.o_proj = RowParallelLinear(
        8,
        D,
        bias=False,
        reduce_results=reduce_results,
        parallel_group=group,
        ctx=ctx,
        prefix="o_proj",
    )
    return compute


@pytest.mark.parametrize("tp", [1, 2])
def test_linear_that_sums_itself_is_refused_under_a_boundary(tp: int) -> None:
    ctx = BuildContext.of(Topology(tp=tp))
    compute = linear(ctx, "tp", reduce_results=True)
    with pytest.raises(BoundaryError, match=r"self_attn\.o_proj.*sum its output twice.*=False"):
        StageBoundary(declare_attn(), compute, norm=norm_of(ctx), where="model.layers.0.self_attn")


def test_linear_on_another_group_than_declared_is_refused() -> None:
    ctx = BuildContext.of(Topology(tp=4, attn_dp=2))
    facts = (declare_attn(), declare_ffn())
    for group, message in (
        ("tp", r"partial over tp \(ranks \(0, 1, 2, 3\)\), the stage declares attn_tp"),
        ("attn_dp", r"partial over attn_dp \(ranks \(0, 2\)\), the stage declares attn_tp"),
    ):
        built = boundaries(ctx)
        compute = linear(ctx, group, reduce_results=False)
        built[0] = StageBoundary(facts[0], compute, norm=norm_of(ctx), where="self_attn")
        with pytest.raises(BoundaryError, match=message):
            open_stack(ctx).append_stages(0, built)


def test_sum_that_nobody_pays_is_refused() -> None:
    ctx = BuildContext.of(Topology(tp=2))
    compute = linear(ctx, "tp", reduce_results=False)
    own = StageBoundary(declare_own("layer"), compute, where="layer")
    stack = LayerStack([(declare_own("layer"),)], declare_head(), ctx=ctx, hidden_size=D)
    with pytest.raises(BoundaryError, match=r"layer\.o_proj.*partial over tp.*declares none"):
        stack.append_stages(0, [own])


def test_group_of_equal_ranks_by_another_name_is_fine() -> None:
    ctx = BuildContext.of(Topology(tp=2))
    built = boundaries(ctx)
    compute = linear(ctx, "tp", reduce_results=False)
    built[0] = StageBoundary(LAYER[0], compute, norm=norm_of(ctx), where="self_attn")
    open_stack(ctx).append_stages(0, built)


def test_norms_and_modules_must_fit_the_facts() -> None:
    ctx = BuildContext.of()
    norm, nothing = norm_of(ctx), nn.Identity()
    with pytest.raises(
        BoundaryError,
        match=r"norm is given for branches \[\]",
    ):
        StageBoundary(declare_attn(), nothing, where="x")
    with pytest.raises(BoundaryError, match="norm is given for branches"):
        StageBoundary(declare_attn(read="plain"), nothing, norm=norm, where="x")
    with pytest.raises(BoundaryError, match="post is given for branches"):
        StageBoundary(declare_attn(), nothing, norm=norm, post=norm, where="x")
    both = declare_parallel(declare_attn(), declare_ffn())
    with pytest.raises(BoundaryError, match=r"compute is given for branches \['attn'\]"):
        StageBoundary(both, {"attn": nothing}, norm=norm, where="x")


def test_groups_that_do_not_go_together_are_refused() -> None:
    ctx = with_groups(BuildContext.of(), tp=Group("tp", (0, 1), 0))
    with pytest.raises(TopologyError, match="tp=2, attn_tp=1, attn_dp=1"):
        open_stack(ctx)


# --- captures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[3], [-1], [1, 1], [True], ["0"], [0, 2, 0]])
def test_aux_indices_that_mean_nothing_are_refused(bad: list[int]) -> None:
    stack, _, _ = stack_of(BuildContext.of(), layers=2)
    with pytest.raises(BoundaryError, match="aux hidden states?"):
        stack.capture(bad)


def test_facts_that_capture_by_themselves_are_refused() -> None:
    facts = [(declare_attn(capture=True), declare_ffn())]
    with pytest.raises(BoundaryError, match=r"capture=True.*call capture\(\)"):
        LayerStack(facts, declare_head(), ctx=BuildContext.of(), hidden_size=D)


def test_captured_states_are_the_embedding_and_the_outputs_before_the_final_norm() -> None:
    stack, made, head = stack_of(BuildContext.of(dtype=torch.float64), layers=2)
    stack.capture([2, 0])
    x = torch.randn(3, D, dtype=torch.float64)
    stream, total = stack.begin(x, ROWS), x.clone()
    for boundary in made:
        rows = boundary.prepare(stream)
        boundary.finish(stream, rows * 3)
        total = total + rows * 3
    head.read(stream)
    captured = stack.captured(stream)
    assert sorted(captured) == [0, 2]
    torch.testing.assert_close(captured[0], x)
    torch.testing.assert_close(captured[2], total)
    stack.capture([])
    assert stack.captured(stack.begin(x, ROWS)) == {}
