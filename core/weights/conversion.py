"""Which dtypes a tensor may change between on its way into a parameter."""

from __future__ import annotations

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floats that stand for their own value. An 8-bit float does not: it goes with a scale."""


def dtype_problem(stored: torch.dtype, wanted: torch.dtype) -> str | None:
    """Why a stored dtype cannot fill a parameter, or None when it can.

    Plain floats convert to any width. Everything else (integers, packed or 8-bit weights, bool)
    must be equal: converting it would give numbers with another meaning.
    """
    if stored == wanted or (stored in _FLOATS and wanted in _FLOATS):
        return None
    return f"{_short(stored)} is stored, the parameter is {_short(wanted)}"


def conversion(stored: torch.dtype, wanted: torch.dtype) -> str:
    """A dtype change, for the report."""
    return f"{_short(stored)} -> {_short(wanted)}"


def overflows(values: Tensor, written: Tensor) -> bool:
    """Whether finite values became infinite in a float that reaches less far; none may be empty."""
    if not _reaches_less(written.dtype, values.dtype):
        return False
    low, high = torch.aminmax(written)  # NaN anywhere makes both NaN
    if bool(low.isfinite() & high.isfinite()):
        return False
    return bool((written.isinf().cpu() & values.isfinite().cpu()).any())


def _reaches_less(dtype: torch.dtype, other: torch.dtype) -> bool:
    return dtype in _FLOATS and other in _FLOATS and torch.finfo(dtype).max < torch.finfo(other).max


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
