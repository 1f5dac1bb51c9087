"""Quantization methods: each creates its parameters and applies them."""

from .base import QuantConfig, QuantMethod, QuantTarget
from .select import quant_config
from .unquantized import UnquantizedConfig, UnquantizedLinearMethod

__all__ = [
    "QuantConfig",
    "QuantMethod",
    "QuantTarget",
    "UnquantizedConfig",
    "UnquantizedLinearMethod",
    "quant_config",
]
