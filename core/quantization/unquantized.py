"""Weights as they are: float matrices, packed for the CPU's GEMM where that helps.

oneDNN multiplies a weight it has re-laid two to three times faster at a few rows than the plain
matrix (20 against 45 to 65 GB/s of weights, float32 and bfloat16). Packing takes longer than
reading, so it waits for the first multiplication: a model is loaded when its weights are in place,
and one that only gives them back, or gets new ones first, never packs. The packed copy replaces the
plain one: ``weight`` keeps shape, dtype and shard spec but no memory, and
``restore_weights_before_loading`` brings the plain matrix back.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from ..parallel import IN, OUT, LinearPartition, ParameterFactory, ShardedParameter
from .base import QuantMethod
from .packing import ONEDNN, WeightPacker


class UnquantizedLinearMethod(QuantMethod):
    """A plain ``weight`` of (out_features, in_features).

    Args:
        packer: packs it where it can.

    Attributes:
        packed: the weight as the packer multiplies it; None before the first multiplication, and
            where the packer does not serve it.
    """

    def __init__(self, packer: WeightPacker = ONEDNN) -> None:
        """Nothing packed yet."""
        self.packed: Tensor | None = None
        self._packer = packer
        self._to_pack = False

    def __getstate__(self) -> dict[str, object]:
        """For a copy or a pickle."""
        return state_of(self, self.packed is not None)

    def create_weights(
        self, layer: nn.Module, partition: LinearPartition, make: ParameterFactory
    ) -> None:
        """Register ``weight``."""
        layer.register_parameter("weight", make(partition.spec(OUT, IN)))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Have the next multiplication pack the weight, where the packer serves it."""
        self._to_pack = self._packer.serves(_weight(layer))

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Give ``weight`` its memory back, with the packed values."""
        packed, self.packed, self._to_pack = self.packed, None, False
        weight = _weight(layer)
        if packed is not None and weight.is_meta:
            plain = ShardedParameter(self._packer.unpack(packed), weight.shard_spec)
            layer.register_parameter("weight", plain)

    def plain_values(self, layer: nn.Module, name: str) -> Tensor:
        """The plain matrix, unpacked where only the packed one is left."""
        if name == "weight" and self.packed is not None and _weight(layer).is_meta:
            return self._packer.unpack(self.packed)
        return super().plain_values(layer, name)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + bias, over the packed weight where there is one."""
        if self._to_pack:
            self._pack(layer)
        if self.packed is None:
            return F.linear(x, _weight(layer), bias)
        return self._packer.multiply(x, self.packed, bias)

    def _pack(self, layer: nn.Module) -> None:
        """Pack the weight; drop the plain copy unless it is shared."""
        self._to_pack, weight = False, _weight(layer)
        self.packed = self._packer.pack(weight.detach())
        if not getattr(layer, "shares_weight", False):
            layer.register_parameter(
                "weight", ShardedParameter(weight.to("meta"), weight.shard_spec)
            )


def state_of(method: object, packed: object) -> dict[str, object]:
    """What a copy or a pickle of a method holds.

    Raises:
        InputError: its weights are packed: torch can neither copy nor store them.
    """
    if packed:
        raise InputError(
            "a model cannot be pickled or copied after its first forward, which packs weights for this "
            "CPU; take its weights by export_weights, or load the checkpoint again"
        )
    return vars(method).copy()


def _weight(layer: nn.Module) -> ShardedParameter:
    weight = layer.weight
    assert isinstance(weight, ShardedParameter)
    return weight
