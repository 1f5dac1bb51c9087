"""ValueCheck: NaN, infinity and dead matrices among the values of a checkpoint.

Two depths. *Every* value can be looked at: a minimum and a maximum of each slice, still in the
cache from being copied, show NaN and infinity; only a slice that has some is counted. Without
that, a few rows of each matrix are looked at: where all of them are NaN, or all are zero, the
tensor was never written by whoever saved it. No matrix of a model here may be zero: one that is
makes its layer say nothing. Vectors may (biases), and integers may (packed zero points).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..parallel import Box, Piece, whole
from .findings import Findings
from .source import TensorInfo, WeightSource

SAMPLED_ROWS = 8
"""Rows of a slice that a plain load looks at."""

_NARROWEST = 2
"""Bytes of the narrowest float that torch can order; narrower ones are widened first."""


class ValueCheck:
    """Looks at slices and enters what is wrong, once for each tensor.

    Args:
        source: where a doubtful tensor is read whole.
        findings: takes the faults.
        every: look at every value, not only at a few rows of each matrix.
    """

    def __init__(self, source: WeightSource, findings: Findings, every: bool) -> None:
        """Nothing looked at yet."""
        self._source, self._findings, self._every = source, findings, every
        self._faulty: set[str] = set()

    def scan(self, slices: Iterable[tuple[TensorInfo, Piece]]) -> None:
        """Read slices only to look at them, and only those in which something is looked at."""
        for tensor, piece in slices:
            if self._every or len(tensor.shape) > 1:
                self.look(tensor, piece.source, self._source.read(tensor.name, piece.source))

    def look(self, tensor: TensorInfo, box: Box, values: Tensor) -> None:
        """Look at one slice.

        Args:
            tensor: whose.
            box: which elements of it.
            values: of the slice.
        """
        if tensor.name in self._faulty or not tensor.dtype.is_floating_point or not values.numel():
            return
        problem = _non_finite(values, box) if self._every else None
        if problem is None and len(tensor.shape) > 1:
            problem = self._dead(tensor, values)
        if problem is not None:
            self._faulty.add(tensor.name)
            self._findings.tensor_fault("value", tensor.name, f"{tensor.name}: {problem}")

    def _dead(self, tensor: TensorInfo, values: Tensor) -> str | None:
        """Why a matrix cannot be meant, going by a few rows; zero rows are the whole tensor's case.

        A rank's slice of a matrix may be zero where the matrix is not (rows of unused tokens).
        """
        rows = _orderable(values[:: -(-values.shape[0] // SAMPLED_ROWS)])
        if bool(((rows != 0) & (rows == rows)).any()):
            return None
        if bool(rows.isnan().all()):
            return f"all of {rows.shape[0]} rows looked at are NaN; the file was saved damaged"
        if bool(self._source.read(tensor.name, whole(tensor.shape)).any()):
            return None
        return f"all {list(tensor.shape)} values are zero; the file was saved before it was filled"


def _non_finite(values: Tensor, box: Box) -> str | None:
    """How many values are NaN or infinite, and where the first is in the full tensor."""
    values = _orderable(values)
    low, high = torch.aminmax(values)  # NaN anywhere makes both NaN
    if bool(low.isfinite() & high.isfinite()):
        return None
    bad = (~values.isfinite()).nonzero()
    first = bad[0].tolist()
    at = [start + index for (start, _), index in zip(box, first, strict=True)]
    nans = int(values.isnan().sum())
    counts = f"{nans} NaN and {len(bad) - nans} infinite"
    return (
        f"{counts} of {values.numel()} values in {[list(pair) for pair in box]}, the first "
        f"({values[tuple(first)].item()}) at {at}; the file is damaged, or training diverged"
    )


def _orderable(values: Tensor) -> Tensor:
    return values if values.dtype.itemsize >= _NARROWEST else values.float()
