"""Weights as they are: float matrices, packed for the CPU's GEMM where that helps.

oneDNN multiplies a weight it has re-laid once about three times faster at one row than the plain
matrix (20 against 60 GB/s of weights in float32 and bfloat16). The packed copy replaces the
plain one: ``weight`` keeps shape, dtype and shard spec but no memory, and
``restore_weights_before_loading`` brings the plain matrix back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parallel import IN, OUT, LinearPartition, ParameterFactory, ShardedParameter
from .base import QuantConfig, QuantMethod, QuantTarget

PACKED_DTYPES = (torch.float32, torch.bfloat16)


class UnquantizedLinearMethod(QuantMethod):
    """A plain ``weight`` of (out_features, in_features)."""

    def create_weights(
        self, layer: nn.Module, partition: LinearPartition, make: ParameterFactory
    ) -> None:
        """Register ``weight``."""
        layer.register_parameter("weight", make(partition.spec(OUT, IN)))
        layer.packed_weight = None

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack the weight where the CPU has a packed GEMM; drop the plain copy unless shared."""
        weight = layer.weight
        assert isinstance(weight, ShardedParameter)
        if not can_pack(weight):
            return
        layer.packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        if not getattr(layer, "shares_weight", False):
            layer.weight = ShardedParameter(weight.to("meta"), weight.shard_spec)

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Give ``weight`` its memory back, with the packed values."""
        packed, weight = layer.packed_weight, layer.weight
        if packed is None:
            return
        assert isinstance(weight, ShardedParameter) and isinstance(packed, Tensor)
        if weight.is_meta:
            layer.weight = ShardedParameter(packed.to_dense(), weight.shard_spec)
        layer.packed_weight = None

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + bias, over the packed weight where there is one."""
        packed = layer.packed_weight
        if packed is None:
            return F.linear(x, layer.weight, bias)  # type: ignore[arg-type]  # a Parameter here
        return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether this CPU has a packed GEMM for the weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKED_DTYPES
        and weight.numel() > 0
        and torch.backends.mkldnn.is_available()
        and (weight.dtype is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class UnquantizedConfig(QuantConfig):
    """Every layer keeps plain weights."""

    name = "unquantized"

    def method_for(self, target: QuantTarget) -> QuantMethod:
        """The plain method, whatever the layer."""
        return UnquantizedLinearMethod()
