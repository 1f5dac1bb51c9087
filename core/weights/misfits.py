"""Misfits: what is wrong with a stored shape or dtype, in full and in a word."""

from __future__ import annotations

import torch

from ..errors import WeightShapeError
from .source import TensorInfo


def dtype_status(tensor: TensorInfo, wanted: torch.dtype) -> str:
    """What is wrong with a stored dtype, in a few words."""
    whole = not tensor.dtype.is_floating_point and wanted.is_floating_point
    return "integer for a float" if whole else "dtype"


def shape_problem(
    tensor: TensorInfo, where: str, expected: tuple[int, ...]
) -> tuple[str, str] | None:
    """What is wrong with a stored shape, in full and in a word; None when nothing is."""
    found = tensor.shape
    if found == expected:
        return None
    status, hint = _shape_difference(found, expected)
    return str(WeightShapeError(tensor.name, found, where, expected, hint)), status


def _shape_difference(found: tuple[int, ...], expected: tuple[int, ...]) -> tuple[str, str]:
    """(status, hint) of two shapes that differ."""
    if 0 in found and 0 not in expected:
        return "empty", (
            "an empty placeholder, as ZeRO-3 training saves ungathered tensors; save it gathered"
        )
    if found == expected[::-1]:
        return "transposed", "it looks transposed"
    if len(found) != len(expected):
        return "other rank", f"{len(found)} dimensions are stored, {len(expected)} configured"
    differ = [at for at, size in enumerate(found) if size != expected[at]]
    hint = "; ".join(f"dimension {d}: {found[d]} stored, {expected[d]} configured" for d in differ)
    smaller = [found[d] < expected[d] for d in differ]
    return "truncated" if all(smaller) else "reshaped" if any(smaller) else "widened", hint
