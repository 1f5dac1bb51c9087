"""Reads which quantization method a checkpoint names; what it means is the method's affair."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from .fields import WRAPPED, FieldReader, Stated
from .ledger import NULL
from .values import Where, refuse, show, text

_NAMES = ("quantization_config", "compression_config")
_COMPRESSED = "compressed-tensors"
_BITSANDBYTES = ("load_in_4bit", "load_in_8bit")
"""Switches that ``transformers`` takes for its method where a block names none."""


def read_quantization(fields: FieldReader) -> dict[str, Any] | None:
    """The quantization block with its method under ``quant_method``; None when there is none.

    Nulls of the block are left out. Its other keys are handed on unread: the method refuses those
    it does not know.

    Raises:
        ConfigError: not an object, no method named, or two blocks that differ.
    """
    blocks = [block for block in (fields.find(name) for name in _NAMES) if block is not None]
    if not blocks:
        return None
    block = blocks[0]
    if any(other.value != block.value for other in blocks):
        refuse(
            Where(block.path, fields.file),
            f"differs from {blocks[1].path}; one checkpoint has one quantization",
        )
    if not isinstance(block.value, Mapping):
        refuse(Where(block.path, fields.file), f"{show(block.value)} is not an object")
    return {**_keys(fields, block), "quant_method": _method(fields, block)}


def without_quantization(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A raw configuration whose quantization blocks are null, so that its weights are plain."""
    plain = dict(raw)
    for name in _NAMES:
        if name in plain:
            plain[name] = None
    if isinstance(inner := plain.get(WRAPPED), Mapping):
        plain[WRAPPED] = without_quantization(inner)
    return plain


def _keys(fields: FieldReader, block: Stated) -> dict[str, Any]:
    result = {}
    for key, value in block.value.items():
        path = f"{block.path}.{key}"
        if value is None:
            fields.ignore_path(path, NULL, value)
            continue
        fields.consumed(path, f"quantization.{key}", value)
        result[key] = deepcopy(value)
    return result


def _method(fields: FieldReader, block: Stated) -> str:
    where = Where(f"{block.path}.quant_method", fields.file)
    method = block.value.get("quant_method")
    if method is not None:
        return text(method, where)
    if any(block.value.get(switch) is True for switch in _BITSANDBYTES):
        fields.defaulted("quantization.quant_method", block.path, "bitsandbytes")
        return "bitsandbytes"
    if not block.path.endswith("compression_config"):
        refuse(where, "missing; the config must name the method that packed the weights")
    fields.defaulted("quantization.quant_method", block.path, _COMPRESSED)
    return _COMPRESSED
