"""ValueCheck: NaN, infinity and zero matrices among the values of a checkpoint.

Two depths. *Every* value is looked at unless somebody asks for less: the sum of a slice, still in
the cache from being copied, is finite only where all its values are; only one that is not is looked
at again and counted. A few rows of each matrix are looked at anyway: where all of them are NaN, the
tensor was never written by whoever saved it. A matrix that is zero throughout may be meant (layers
that begin as the identity, routers of upcycled experts), or saved too early: it is named, not
refused. Vectors (biases) and integers (packed zero points) may be zero without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..parallel import Box, Piece, box_numel, whole
from .findings import Findings
from .parts import Part
from .source import TensorInfo, WeightSource

SAMPLED_ROWS = 8
"""Rows of a slice that a plain load looks at."""

_NARROWEST = 2
"""Bytes of the narrowest float that torch can order; narrower ones are widened first."""


Problem = tuple[str, str]
"""Status in a word or two, and the message."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the values of a slice show.

    Args:
        problem: NaN and infinite values, counted and placed; None without, or unlooked for.
        rows: sampled rows of a matrix; 0 where anything may be zero.
        alive: one of them has a number other than zero.
        nan: all of their values are NaN.
    """

    problem: Problem | None = None
    rows: int = 0
    alive: bool = True
    nan: bool = False


@dataclass(slots=True)
class _Gathered:
    """What the parts of one slice showed so far, and how many elements are yet to come."""

    left: int
    rows: int = 0
    alive: bool = False
    nan: bool = True


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
        self._dim: set[str] = set()
        self._gathered: dict[tuple[str, str, Box], _Gathered] = {}

    def scan(self, slices: Iterable[tuple[TensorInfo, Piece]]) -> None:
        """Read slices only to look at them, and only those in which something is looked at."""
        for tensor, piece in slices:
            if self._every or len(tensor.shape) > 1:
                self.look(tensor, piece.source, self._source.read(tensor.name, piece.source))

    def look(self, tensor: TensorInfo, box: Box, values: Tensor) -> None:
        """Look at one slice, and enter what it shows.

        Args:
            tensor: whose.
            box: which elements of it.
            values: of the slice.
        """
        if tensor.name not in self._faulty:
            self._judge(tensor, self.observe(tensor, box, values))

    def observe(self, tensor: TensorInfo, box: Box, values: Tensor) -> Sight:
        """What the values of a slice, or of a part of one, show; any thread may ask."""
        if not tensor.dtype.is_floating_point or not values.numel():
            return Sight()
        problem = _non_finite(values, box) if self._every else None
        if len(tensor.shape) < 2:
            return Sight(problem)
        rows = _orderable(values[:: -(-values.shape[0] // SAMPLED_ROWS)])
        alive = bool(((rows != 0) & (rows == rows)).any())
        return Sight(problem, rows.shape[0], alive, not alive and bool(rows.isnan().all()))

    def enter(self, part: Part, sight: Sight) -> None:
        """Take in what a part showed; the slice is judged when its last part is there."""
        key = (part.parameter, part.tensor.name, part.piece.source)
        slice_ = self._gathered.setdefault(key, _Gathered(box_numel(part.piece.source)))
        slice_.left -= box_numel(part.source)
        slice_.rows += sight.rows
        slice_.alive |= sight.alive
        slice_.nan &= sight.nan
        if not slice_.left:
            del self._gathered[key]
        if slice_.left and sight.problem is None:
            return
        self._judge(part.tensor, Sight(sight.problem, slice_.rows, slice_.alive, slice_.nan))

    def _judge(self, tensor: TensorInfo, sight: Sight) -> None:
        problem = sight.problem
        if problem is None and sight.nan:
            text = f"all of {sight.rows} rows looked at are NaN; the file was saved damaged"
            problem = "all NaN", text
        if problem is not None:
            if tensor.name not in self._faulty:
                self._faulty.add(tensor.name)
                status, text = problem
                self._findings.tensor_fault("value", tensor.name, f"{tensor.name}: {text}", status)
        elif not sight.alive and tensor.name not in self._dim:
            self._dim.add(tensor.name)
            if all_zero(self._source, tensor):  # one slice may be zero where others are not
                self._findings.zero(tensor.name)


def all_zero(source: WeightSource, tensor: TensorInfo) -> bool:
    """Whether all values of a tensor are zero; reads it whole."""
    values = source.read(tensor.name, whole(tensor.shape))
    return not bool((_orderable(values) if values.is_floating_point() else values).any())


def _non_finite(values: Tensor, box: Box) -> Problem | None:
    """How many values are NaN or infinite, and where the first is in the full tensor."""
    values = _orderable(values)
    # NaN and infinities of either sign never leave a sum again. Finite values may overflow in it,
    # which the second look tells. One pass over cached values, of the speed of copying them.
    if bool(values.sum().isfinite()):
        return None
    low, high = torch.aminmax(values)  # NaN anywhere makes both NaN
    if bool(low.isfinite() & high.isfinite()):
        return None
    bad = (~values.isfinite()).nonzero()
    first = bad[0].tolist()
    at = [start + index for (start, _), index in zip(box, first, strict=True)]
    nans = int(values.isnan().sum())
    counts = f"{nans} NaN and {len(bad) - nans} infinite"
    return "NaN" if nans else "infinite", (
        f"{counts} of {values.numel()} values in {[list(pair) for pair in box]}, the first "
        f"({values[tuple(first)].item()}) at {at}; the file is damaged, or training diverged"
    )


def _orderable(values: Tensor) -> Tensor:
    return values if values.dtype.itemsize >= _NARROWEST else values.float()
