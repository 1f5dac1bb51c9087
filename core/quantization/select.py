"""Which quantization a checkpoint asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import QuantizationError
from ..registry import Group, implementation, ready_names
from .base import QuantConfig
from .unquantized import UnquantizedConfig


def quant_config(settings: Mapping[str, Any] | None) -> QuantConfig:
    """The configuration for a checkpoint's ``quantization_config``; plain weights for None.

    Methods come from plugins, by the entry-point group ``archzoo.quantization``.

    Raises:
        QuantizationError: the method is not served here, or its class is no QuantConfig.
        RegistryError: plugins register the method and it cannot be had; says why.
    """
    if settings is None:
        return UnquantizedConfig()
    method = settings.get("quant_method")
    found = implementation(Group.QUANTIZATION, method) if isinstance(method, str) else None
    if found is None:
        served = (
            ", ".join(ready_names(Group.QUANTIZATION))
            or "none (plain float32, bfloat16, float16 only)"
        )
        raise QuantizationError(
            f"quantization_config asks for quant_method {method!r}, which is not served; "
            f"methods served: {served}; use an unquantized checkpoint of this model, or install "
            "a plugin that serves the method"
        )
    if not issubclass(found, QuantConfig):
        raise QuantizationError(
            f"quant_method {method!r} is served by {found.__module__}.{found.__qualname__}, which "
            "does not extend archzoo.quantization.QuantConfig"
        )
    return found.from_checkpoint(settings)
