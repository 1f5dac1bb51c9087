"""A method the core has never seen loads over ranks and applies, with no change elsewhere.

The method packs eight 4-bit inputs into an int32, scales groups of inputs, and permutes inputs by
an index vector, as group-wise formats do.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from archzoo.context import BuildContext
from archzoo.errors import CoverageError, QuantizationError, ShapeError
from archzoo.layers import (
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from archzoo.parallel import IN, OUT, Dim, LinearPartition, ParameterFactory, Topology
from archzoo.quantization import QuantConfig, QuantMethod, QuantTarget, quant_config
from archzoo.weights import AutoWeightsLoader
from ranks import contexts

PACK, GROUP = 8, 8


class PackedMethod(QuantMethod):
    """W[o, i] = (nibble(qweight)[i, o] - 8) * scales[group[i], o]."""

    def create_weights(
        self, layer: nn.Module, partition: LinearPartition, make: ParameterFactory
    ) -> None:
        layer.qweight = make(partition.spec(Dim("in", unit=PACK), OUT), torch.int32)
        layer.scales = make(partition.spec(Dim("in", unit=GROUP), OUT))
        layer.g_idx = make(partition.spec(IN), torch.int32)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        nibbles = torch.stack([(layer.qweight >> (4 * n)) & 15 for n in range(PACK)], 1)
        codes = nibbles.flatten(0, 1).to(layer.scales.dtype) - 8
        local = (layer.g_idx - layer.g_idx.min()).long()
        layer.dense = (codes * layer.scales[local]).T.contiguous()

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.linear(x, layer.dense, bias)


class PackedConfig(QuantConfig):
    name = "packed-test"

    def method_for(self, target: QuantTarget) -> QuantMethod:
        return PackedMethod()


def checkpoint(outputs: int, inputs: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Packed tensors and the dense matrix they stand for."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (inputs, outputs), generator=generator, dtype=torch.int32)
    shifts = torch.arange(PACK, dtype=torch.int32).mul(4)[None, :, None]
    packed = (codes.view(inputs // PACK, PACK, outputs) << shifts).sum(1).to(torch.int32)
    scales = torch.rand(inputs // GROUP, outputs, generator=generator) + 0.5
    groups = torch.arange(inputs, dtype=torch.int32) // GROUP
    dense = ((codes - 8) * scales[groups.long()]).T
    return {"qweight": packed, "scales": scales, "g_idx": groups}, dense


class Block(nn.Module):
    """One of each sharded linear."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(48, 8, 6, 3, False, ctx=ctx, prefix="qkv_proj")
        self.gate_up_proj = MergedColumnParallelLinear(
            48, [96, 96], False, ctx=ctx, prefix="gate_up_proj"
        )
        self.down_proj = RowParallelLinear(96, 48, False, ctx=ctx, prefix="down_proj")


@pytest.mark.parametrize("tp", [1, 3])
def test_packed_weights_load_over_ranks_and_apply(tp: int) -> None:
    world, each = contexts(Topology(tp=tp))
    shapes = {"qkv_proj": (96, 48), "gate_up_proj": (192, 48), "down_proj": (48, 96)}
    tensors: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        parts, dense[name] = checkpoint(*shape, seed)
        if name == "down_proj":
            tensors |= {f"{name}.{key}": value for key, value in parts.items()}
            continue
        cuts = [48, 24, 24] if name == "qkv_proj" else [96, 96]
        keys = ["q", "k", "v"] if name == "qkv_proj" else [0, 1]
        # g_idx is the same for all parts of a stacked layer: stored once.
        tensors[f"{name}.g_idx"] = parts["g_idx"]
        for tensor in ("qweight", "scales"):
            for key, part in zip(keys, parts[tensor].split(cuts, 1), strict=True):
                tensors[f"{name}.{tensor}.{key}"] = part

    x, wide = torch.randn(2, 48), torch.randn(2, 96)

    def run(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx = each[rank]
        packed = BuildContext(
            ctx.groups, ctx.topology, ctx.dtype, ctx.device, PackedConfig(), poison=True
        )
        block = Block(packed)
        report = AutoWeightsLoader(block, name_map=names()).load_weights(tensors.items())
        assert report.ok and len(report.parameter_names) == 9
        part = 96 // tp
        mine = wide[:, rank * part : (rank + 1) * part]
        return block.qkv_proj(x)[0], block.gate_up_proj(x)[0], block.down_proj(mine)[0]

    for rank, (qkv, gate_up, down) in enumerate(world.run(run)):
        torch.testing.assert_close(down, wide @ dense["down_proj"].T, rtol=1e-4, atol=1e-4)
        q, k, v = (x @ dense["qkv_proj"].T).split([48, 24, 24], -1)
        want = torch.cat([part.chunk(tp, -1)[rank] for part in (q, k, v)], -1)
        torch.testing.assert_close(qkv, want, rtol=1e-4, atol=1e-4)
        gate, up = (x @ dense["gate_up_proj"].T).split([96, 96], -1)
        want = torch.cat([gate.chunk(tp, -1)[rank], up.chunk(tp, -1)[rank]], -1)
        torch.testing.assert_close(gate_up, want, rtol=1e-4, atol=1e-4)


def names():
    from archzoo.weights import NameMap, Rename

    parts = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": (0, 1)}
    return NameMap(
        stacking=tuple(
            Rename(f"{layer}.{tensor}.{key}", f"{layer}.{tensor}", key)
            for layer, keys in parts.items()
            for tensor in ("qweight", "scales")
            for key in keys
        )
    )


def test_a_missing_scale_is_a_fault() -> None:
    ctx = BuildContext.of(quant=PackedConfig())
    layer = nn.Module()
    layer.down_proj = RowParallelLinear(16, 8, False, ctx=ctx, prefix="down_proj")
    tensors, _ = checkpoint(8, 16, 0)
    del tensors["scales"]
    with pytest.raises(CoverageError, match=r"down_proj\.scales"):
        AutoWeightsLoader(layer).load_weights(
            (f"down_proj.{key}", value) for key, value in tensors.items()
        )


def test_a_rank_boundary_inside_a_pack_is_refused() -> None:
    ctx = BuildContext.of(Topology(tp=4), quant=PackedConfig())
    with pytest.raises(ShapeError, match=r"down_proj.*4 features.*8"):
        RowParallelLinear(16, 8, False, ctx=ctx, prefix="down_proj")


def test_linears_allocate_nothing_themselves() -> None:
    class Nothing(PackedMethod):
        def create_weights(self, *_: object) -> None:
            pass

    class Config(PackedConfig):
        def method_for(self, target: QuantTarget) -> QuantMethod:
            assert target == QuantTarget("o_proj", "linear")
            return Nothing()

    layer: LinearBase = RowParallelLinear(
        8, 8, False, ctx=BuildContext.of(quant=Config()), prefix="o_proj"
    )
    assert not list(layer.parameters()) and not list(layer.buffers())


@pytest.mark.parametrize(
    "settings", [{"quant_method": "zippy4"}, {"quant_method": "fp8"}, {"quant_method": None}, {}]
)
def test_an_unserved_method_is_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(QuantizationError, match=repr(settings.get("quant_method"))):
        quant_config(settings)


def test_no_settings_mean_plain_weights() -> None:
    assert quant_config(None).name == "unquantized"
