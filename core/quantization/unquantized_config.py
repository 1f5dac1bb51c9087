"""The configuration of checkpoints without quantization."""

from __future__ import annotations

from .base import ExpertsMethod, QuantConfig, QuantMethod, QuantTarget
from .unquantized import UnquantizedLinearMethod
from .unquantized_experts import UnquantizedExpertsMethod


class UnquantizedConfig(QuantConfig):
    """Every layer keeps plain weights."""

    name = "unquantized"

    def method_for(self, target: QuantTarget) -> QuantMethod:
        """The plain method, whatever the layer."""
        return UnquantizedLinearMethod()

    def experts_method_for(self, target: QuantTarget) -> ExpertsMethod:
        """The plain method for experts."""
        return UnquantizedExpertsMethod()
