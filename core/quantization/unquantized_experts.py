"""Experts as they are: float matrices in one tensor, each packed for the CPU's GEMM where that helps.

Of many experts a batch meets some, each with a few rows. Rows come sorted by expert, so each expert
multiplies one contiguous block, and experts without rows cost nothing. Packed matrices are up to
1.9 times as fast as plain ones, at one float32 row as fast (``benchmarks/experts.py``);
``torch.nn.functional.grouped_mm`` is as fast as plain ones on a CPU, so it is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parallel import IN, OUT, ExpertPartition, ParameterFactory, ShardedParameter
from .base import ExpertsMethod
from .packing import ONEDNN, WeightPacker
from .unquantized import state_of


class UnquantizedExpertsMethod(ExpertsMethod):
    """A plain ``weight`` of (experts, out_features, in_features).

    Args:
        packer: packs the matrices where it can.

    Attributes:
        packed: each expert's matrix as the packer multiplies it; empty before loading, and where the
            packer does not serve them.
    """

    def __init__(self, packer: WeightPacker = ONEDNN) -> None:
        """Nothing packed yet."""
        self.packed: tuple[Tensor, ...] = ()
        self._packer = packer

    def __getstate__(self) -> dict[str, object]:
        """For a copy or a pickle."""
        return state_of(self, self.packed)

    def create_weights(
        self, layer: nn.Module, partition: ExpertPartition, make: ParameterFactory
    ) -> None:
        """Register ``weight``."""
        layer.register_parameter("weight", make(partition.spec(OUT, IN)))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack every matrix where the packer serves them, and drop the plain ones."""
        weight = _weight(layer)
        if not self._packer.serves(weight):
            return
        self.packed = tuple(map(self._packer.pack, weight.detach()))
        layer.register_parameter("weight", ShardedParameter(weight.to("meta"), weight.shard_spec))

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Give ``weight`` its memory back, with the packed values."""
        if self.packed:
            plain = ShardedParameter(self._plain(), _weight(layer).shard_spec)
            layer.register_parameter("weight", plain)
        self.packed = ()

    def plain_values(self, layer: nn.Module, name: str) -> Tensor:
        """The plain matrices, unpacked where only packed ones are left."""
        return (
            self._plain() if name == "weight" and self.packed else super().plain_values(layer, name)
        )

    def apply(self, layer: nn.Module, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Each block of rows by its expert's matrix."""
        matrices = self.packed or _weight(layer).unbind()
        multiply = self._packer.multiply if self.packed else F.linear
        blocks = zip(torch.split(x, list(counts)), matrices, strict=True)
        parts = [multiply(rows, matrix, None) for rows, matrix in blocks if len(rows)]
        return torch.cat(parts) if parts else x.new_empty(0, _weight(layer).shape[1])

    def _plain(self) -> Tensor:
        return torch.stack(list(map(self._packer.unpack, self.packed)))


def _weight(layer: nn.Module) -> ShardedParameter:
    weight = layer.weight
    assert isinstance(weight, ShardedParameter)
    return weight
