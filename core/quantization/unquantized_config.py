"""The configuration of checkpoints without quantization."""

from __future__ import annotations

from .base import ExpertsMethod, QuantConfig, QuantMethod, QuantTarget
from .packing import ONEDNN, WeightPacker
from .unquantized import UnquantizedLinearMethod
from .unquantized_experts import UnquantizedExpertsMethod


class UnquantizedConfig(QuantConfig):
    """Every layer keeps plain weights.

    Args:
        packer: packs matrices where it can.
    """

    name = "unquantized"

    def __init__(self, packer: WeightPacker = ONEDNN) -> None:
        self.packer = packer

    def method_for(self, target: QuantTarget) -> QuantMethod:
        """The plain method, whatever the layer."""
        return UnquantizedLinearMethod(self.packer)

    def experts_method_for(self, target: QuantTarget) -> ExpertsMethod:
        """The plain method for experts."""
        return UnquantizedExpertsMethod(self.packer)
