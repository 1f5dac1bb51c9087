"""Which quantization a checkpoint asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import QuantizationError
from .base import QuantConfig
from .unquantized import UnquantizedConfig

METHODS: tuple[str, ...] = ()
"""Quantization methods served besides plain weights."""


def quant_config(settings: Mapping[str, Any] | None) -> QuantConfig:
    """The configuration for a checkpoint's ``quantization_config``; plain weights for None.

    Raises:
        QuantizationError: the method is not served here.
    """
    if settings is None:
        return UnquantizedConfig()
    method = settings.get("quant_method")
    served = ", ".join(METHODS) or "none yet (plain float32, bfloat16 and float16 weights only)"
    raise QuantizationError(
        f"quantization_config asks for quant_method {method!r}, which is not served; "
        f"methods served: {served}; use an unquantized checkpoint of this model"
    )
