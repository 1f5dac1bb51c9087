"""Quantization methods: each creates its parameters and applies them."""

from .base import ExpertsMethod, QuantConfig, QuantMethod, QuantTarget, WeightMethod
from .ignored import IgnoreList
from .select import quant_config
from .unquantized import UnquantizedLinearMethod
from .unquantized_config import UnquantizedConfig

__all__ = [
    "ExpertsMethod",
    "IgnoreList",
    "QuantConfig",
    "QuantMethod",
    "QuantTarget",
    "UnquantizedConfig",
    "UnquantizedLinearMethod",
    "WeightMethod",
    "quant_config",
]
