"""Each parallel linear gives, on any group, what one rank gives."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from agents import HANGING
from packers import PACKERS
from torch.nn import functional as F

from archzoo.context import BuildContext
from archzoo.errors import CollectiveError, ShapeError
from archzoo.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from archzoo.layers.qkv import QKVParallelLinear
from archzoo.parallel import Group, Topology
from archzoo.quantization import UnquantizedConfig
from archzoo.quantization.packing import WeightPacker
from ranks import contexts, fill, finish, on_ranks, with_groups

DTYPES = [torch.float64, torch.float32]


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def load(layer: LinearBase, weight: dict[object, torch.Tensor], bias: dict[object, torch.Tensor]):
    fill(layer.weight, weight)
    if layer.bias is not None:
        fill(layer.bias, bias)
    finish(layer)
    return layer


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and not got.isnan().any()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("tp", [1, 2, 3, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_column_gathered_equals_one_matrix(
    tp: int, rows: int, bias: bool, dtype: torch.dtype
) -> None:
    w, b, x = draw(12, 5, dtype=dtype), draw(12, dtype=dtype), draw(rows, 5, dtype=dtype)

    def run(ctx: BuildContext) -> torch.Tensor:
        layer = ColumnParallelLinear(5, 12, bias, gather_output=True, ctx=ctx, prefix="c")
        out, owed = load(layer, {None: w}, {None: b})(x)
        assert owed is None
        return out

    for out in on_ranks(Topology(tp=tp), run, dtype):
        close(out, F.linear(x, w, b if bias else None))


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("skip", [False, True])
def test_merged_columns_keep_their_parts_apart(tp: int, skip: bool) -> None:
    parts = {0: draw(8, 5), 1: draw(4, 5), 2: draw(12, 5)}
    biases = {0: draw(8), 1: draw(4), 2: draw(12)}
    x = draw(3, 5)

    def run(ctx: BuildContext) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = MergedColumnParallelLinear(5, [8, 4, 12], True, True, skip, ctx=ctx, prefix="m")
        assert layer.local_sizes == (8 // tp, 4 // tp, 12 // tp)
        return load(layer, parts, biases)(x)

    for out, owed in on_ranks(Topology(tp=tp), run, torch.float64):
        plain = torch.cat([F.linear(x, parts[i]) for i in range(3)], -1)
        bias = torch.cat([biases[i] for i in range(3)])
        close(out, plain if skip else plain + bias)
        if skip:
            assert owed is not None
            close(owed, bias)
        else:
            assert owed is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("parallel_input", [True, False])
@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_row_sums_to_one_matrix_with_one_bias(
    tp: int, parallel_input: bool, reduce: bool, rows: int, dtype: torch.dtype
) -> None:
    w, b, x = draw(7, 12, dtype=dtype), draw(7, dtype=dtype), draw(rows, 12, dtype=dtype)

    def run(ctx: BuildContext) -> torch.Tensor:
        layer = RowParallelLinear(
            12, 7, True, parallel_input, reduce_results=reduce, ctx=ctx, prefix="r"
        )
        rank, part = ctx.group("tp").rank, 12 // tp
        mine = x[:, rank * part : (rank + 1) * part] if parallel_input else x
        out, owed = load(layer, {None: w}, {None: b})(mine)
        assert owed is None
        return out

    outs = on_ranks(Topology(tp=tp), run, dtype)
    want = F.linear(x, w, b)
    if reduce:
        for out in outs:
            close(out, want)
    else:
        close(torch.stack(outs).sum(0), want)


def test_row_bias_enters_on_rank_0_of_its_own_group() -> None:
    """With attn_tp 2 inside tp 4, world ranks 0 and 2 are both first of their group."""
    w, b, x = draw(3, 4), draw(3), draw(2, 4)

    def run(ctx: BuildContext) -> torch.Tensor:
        layer = RowParallelLinear(4, 3, parallel_group="attn_tp", ctx=ctx, prefix="o")
        rank = ctx.group("attn_tp").rank
        load(layer, {None: w}, {None: b})
        return layer(x[:, rank * 2 : rank * 2 + 2])[0]

    for out in on_ranks(Topology(tp=4, attn_dp=2), run, torch.float64):
        close(out, F.linear(x, w, b))


def test_skipped_row_bias_is_whole_on_every_rank_and_not_added() -> None:
    w, b, x = draw(3, 4), draw(3), draw(2, 4)

    def run(ctx: BuildContext) -> tuple[torch.Tensor, torch.Tensor]:
        layer = RowParallelLinear(4, 3, skip_bias_add=True, ctx=ctx, prefix="o")
        rank = ctx.group("tp").rank
        load(layer, {None: w}, {None: b})
        return layer(x[:, rank * 2 : rank * 2 + 2])

    for out, owed in on_ranks(Topology(tp=2), run, torch.float64):
        close(out, F.linear(x, w))
        close(owed, b)


def test_replicated_is_whole_everywhere() -> None:
    w, b, x = draw(3, 4), draw(3), draw(2, 4)

    def run(ctx: BuildContext) -> torch.Tensor:
        return load(ReplicatedLinear(4, 3, ctx=ctx), {None: w}, {None: b})(x)[0]

    for out in on_ranks(Topology(tp=3), run, torch.float64):
        close(out, F.linear(x, w, b))


@pytest.mark.parametrize(("tp", "kv"), [(1, 2), (2, 2), (4, 2), (8, 2), (4, 1), (8, 4)])
@pytest.mark.parametrize("v_head", [4, 6])
def test_qkv_splits_by_head_and_copies_kv_heads(tp: int, kv: int, v_head: int) -> None:
    heads, head, width = 8, 4, 10
    weights = {
        "q": draw(heads * head, width),
        "k": draw(kv * head, width),
        "v": draw(kv * v_head, width),
    }
    biases = {"q": draw(heads * head), "k": draw(kv * head), "v": draw(kv * v_head)}
    x = draw(3, width)

    def run(ctx: BuildContext) -> tuple[QKVParallelLinear, torch.Tensor]:
        layer = QKVParallelLinear(
            width, head, heads, kv, True, v_head_size=v_head, ctx=ctx, prefix="qkv_proj"
        )
        return load(layer, weights, biases), layer(x)[0]

    for layer, out in on_ranks(Topology(tp=tp), run, torch.float64):
        q, k, v = out.split(layer.local_sizes, -1)
        at = layer.heads
        want = {key: F.linear(x, weights[key], biases[key]) for key in weights}
        first, kv_first = at.first_head * head, at.first_kv_head
        close(q, want["q"][:, first : first + q.shape[1]])
        close(k, want["k"][:, kv_first * head : kv_first * head + k.shape[1]])
        close(v, want["v"][:, kv_first * v_head : kv_first * v_head + v.shape[1]])
        own = range(at.first_head, at.first_head + at.num_heads)
        assert {h * kv // heads for h in own} <= set(range(kv_first, kv_first + at.num_kv_heads))


def test_kv_heads_may_be_split_over_another_group() -> None:
    """Queries over tp 4, KV heads over the 2 ranks of attn_dp: rank // 2 says which."""
    weights = {"q": draw(8 * 2, 6), "k": draw(2 * 2, 6), "v": draw(2 * 2, 6)}
    x = draw(1, 6)

    def run(ctx: BuildContext) -> torch.Tensor:
        layer = QKVParallelLinear(
            6, 2, 8, 2, False, parallel_group="tp", kv_parallel_group="attn_dp", ctx=ctx, prefix="a"
        )
        assert layer.local_sizes == (4, 2, 2)
        return load(layer, weights, {})(x)[0]

    for rank, out in enumerate(on_ranks(Topology(tp=4, attn_dp=2), run, torch.float64)):
        close(out[:, :4], F.linear(x, weights["q"])[:, rank * 4 : rank * 4 + 4])
        own = slice(rank // 2 * 2, rank // 2 * 2 + 2)
        close(out[:, 4:6], F.linear(x, weights["k"])[:, own])
        close(out[:, 6:], F.linear(x, weights["v"])[:, own])


def test_kv_heads_of_other_ranks_queries_are_refused() -> None:
    ctx = contexts(Topology(tp=4, attn_dp=2))[1][1]
    with pytest.raises(ShapeError, match=r"a: rank 1 of tp=4 .* rank 1 of attn_tp=2"):
        QKVParallelLinear(6, 2, 8, 2, kv_parallel_group="attn_tp", ctx=ctx, prefix="a")


def test_messages_name_sizes_group_and_place() -> None:
    ctx = contexts(Topology(tp=4))[1][1]
    with pytest.raises(ShapeError, match=r"model\.up.*intermediate_size=90.*tp=4"):
        ColumnParallelLinear(8, 90, ctx=ctx, prefix="model.up", output_name="intermediate_size")
    with pytest.raises(ShapeError, match=r"down.*90.*tp=4"):
        RowParallelLinear(90, 8, ctx=ctx, prefix="down")
    with pytest.raises(ShapeError, match=r"attn.*6 query heads.*tp=4"):
        QKVParallelLinear(8, 2, 6, 2, ctx=ctx, prefix="attn")
    with pytest.raises(ShapeError, match=r"12 query heads|3 KV heads.*tp=4"):
        QKVParallelLinear(8, 2, 12, 3, ctx=ctx, prefix="attn")
    with pytest.raises(CollectiveError, match="no group 'other'"):
        ColumnParallelLinear(8, 8, parallel_group="other", ctx=ctx)


def test_injected_groups_cut_and_sum() -> None:
    """A group from another engine serves as well as ours."""

    class Doubling:
        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    ctx = with_groups(BuildContext.of(), tp=Group("tp", (0, 1), 0, Doubling()))  # type: ignore[arg-type]
    layer = RowParallelLinear(4, 3, False, ctx=ctx, prefix="o")
    w = draw(3, 4, dtype=torch.float32)
    load(layer, {None: w}, {})
    x = draw(1, 2, dtype=torch.float32)
    close(layer(x)[0], F.linear(x, w[:, :2]) * 2)


def test_shape_only_groups_build_but_do_not_sum() -> None:
    layer = RowParallelLinear(4, 3, ctx=BuildContext.of(Topology(tp=2, rank=1)), prefix="o")
    assert layer.weight.shape == (3, 2)
    with pytest.raises(CollectiveError, match="built for shapes only"):
        layer(torch.zeros(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
def test_packed_weights_multiply_like_plain_ones_and_come_back(
    packer: WeightPacker, dtype: torch.dtype
) -> None:
    ctx = BuildContext.of(dtype=dtype, quant=UnquantizedConfig(packer), poison=True)
    layer = ReplicatedLinear(33, 17, ctx=ctx, prefix="p")
    w, b = draw(17, 33, dtype=dtype), draw(17, dtype=dtype)
    load(layer, {None: w}, {None: b})
    packs = packer.serves(layer.weight)
    assert layer.quant_method.packed is None and torch.equal(layer.weight, w), "packed too early"

    def check(x: torch.Tensor) -> None:
        wanted = F.linear(x.double(), w.double(), b.double()).to(dtype)
        error = 3 * torch.finfo(dtype).eps  # the product rounds once, some kernels the sum as well
        torch.testing.assert_close(layer(x)[0], wanted, rtol=error, atol=10 * error)

    for rows in (1, 0, 3, 65):
        check(draw(rows, 33, dtype=dtype))
        check(draw(rows, 66, dtype=dtype)[:, :33])
    assert (layer.quant_method.packed is not None) is packs
    assert layer.weight.is_meta is packs, "the plain copy stays where it is packed, and only there"
    assert torch.equal(layer.quant_method.plain_values(layer, "weight"), w)
    layer.quant_method.restore_weights_before_loading(layer)
    assert torch.equal(layer.weight, w) and layer.quant_method.packed is None
    check(draw(2, 33, dtype=dtype))


def test_this_cpus_packer_on_a_lesser_cpu() -> None:
    """oneDNN answers for the CPU it is told of, so the test above is run as on one of 2013."""
    lesser = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    test = f"{__file__}::{test_packed_weights_multiply_like_plain_ones_and_come_back.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={**os.environ, **lesser},
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout
    if platform.machine() in ("x86_64", "AMD64"):
        assert "bfloat16 not" in done.stdout, done.stdout
