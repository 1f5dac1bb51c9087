"""Which quantization a checkpoint asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import QuantizationError
from ..registry import Group, implementation, ready_names
from ..weights import NameMap
from .base import QuantConfig
from .ignored import IGNORE_KEYS, PartlyPlain, ignored_modules
from .unquantized_config import UnquantizedConfig


def quant_config(settings: Mapping[str, Any] | None, names: NameMap | None = None) -> QuantConfig:
    """The configuration for a checkpoint's ``quantization_config``; plain weights for None.

    Methods come from plugins, by the entry-point group ``archzoo.quantization``. They do not see
    the ignore list: its layers are plain whatever the method.

    Args:
        settings: the block.
        names: the name map of the checkpoint's tensors, through which the ignore list goes; None
            where modules are called as in the model.

    Raises:
        QuantizationError: the method is not served here, or its class is no QuantConfig, or the
            ignore list cannot be read.
        RegistryError: plugins register the method and it cannot be had; says why.
    """
    if settings is None:
        return UnquantizedConfig()
    name = settings.get("quant_method")
    found = implementation(Group.QUANTIZATION, name) if isinstance(name, str) else None
    if found is None:
        served = (
            ", ".join(ready_names(Group.QUANTIZATION))
            or "none (plain float32, bfloat16, float16 only)"
        )
        raise QuantizationError(
            f"quantization_config asks for quant_method {name!r}, which is not served; "
            f"methods served: {served}; use an unquantized checkpoint of this model, or install "
            "a plugin that serves the method"
        )
    if not issubclass(found, QuantConfig):
        raise QuantizationError(
            f"quant_method {name!r} is served by {found.__module__}.{found.__qualname__}, which "
            "does not extend archzoo.quantization.QuantConfig"
        )
    ignored = ignored_modules(settings, names or NameMap())
    method = found.from_checkpoint(
        {key: value for key, value in settings.items() if key not in IGNORE_KEYS}
    )
    return PartlyPlain(method, ignored) if ignored.entries else method
