"""How far two traces are apart, stage by stage, and where they part.

Residual streams have rows and features thousands of times larger than others, so an absolute error
says little about them. Stages are judged by the error of a whole row relative to that row: rms of
the difference over rms of the reference, the worst row counting. Logits in float32 and float64
must also be equal within the tolerance in absolute numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ShapeError
from .trace import LOGITS, Trace

TOLERANCES = {
    torch.float64: 2e-4,  # transformers takes norms and rotary angles in float32
    torch.float32: 2e-4,
    torch.float16: 5e-2,
    torch.bfloat16: 2.5e-1,
}
"""Default tolerance for each dtype. Rounding of a deep model stays below; in the narrow dtypes it is
so large where big numbers cancel that only gross mistakes show: look for others in float32."""

_SMALLEST_RMS = 1e-3
"""Rows smaller than this are judged as if they had this rms: they may be all zeros."""
_CHUNK_ROWS = 64


@dataclass(frozen=True)
class StageError:
    """One stage of two traces.

    Args:
        stage: its name.
        largest: absolute error, the largest of all elements.
        relative: rms error of a row over its rms, the largest of all rows.
        rms: of the reference's values.
        agrees: whether that is within the tolerance; NaN never is.
    """

    stage: str
    largest: float
    relative: float
    rms: float
    agrees: bool


@dataclass(frozen=True)
class Comparison:
    """Two traces side by side.

    Args:
        stages: in the order of computation.
        same_choice: rows whose likeliest token is the same, and all rows; None without logits.
            A row with NaN has none.
    """

    stages: tuple[StageError, ...]
    same_choice: tuple[int, int] | None

    @property
    def first_departure(self) -> StageError | None:
        """Where the two begin to differ."""
        return next((each for each in self.stages if not each.agrees), None)


def compare(ours: Trace, theirs: Trace, tolerance: float) -> Comparison:
    """Compare stage by stage.

    Raises:
        ShapeError: the traces have other stages or shapes.
    """
    shapes = [{stage: tuple(t.shape) for stage, t in trace.items()} for trace in (ours, theirs)]
    if list(shapes[0].items()) != list(shapes[1].items()):
        differ = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
        raise ShapeError(f"the two models have other stages or shapes: {differ}")
    stages = tuple(_stage_error(stage, ours[stage], theirs[stage], tolerance) for stage in ours)
    return Comparison(stages, _same_choice(ours, theirs))


def _stage_error(stage: str, ours: Tensor, theirs: Tensor, tolerance: float) -> StageError:
    largest = relative = torch.zeros((), dtype=torch.float64)
    squares = torch.zeros((), dtype=torch.float64)
    for mine, reference in _chunks(ours, theirs):
        error = mine - reference
        rms = _rms(reference)
        # torch.maximum passes NaN on, Python's max may lose it.
        largest = torch.maximum(largest, error.abs().max())
        relative = torch.maximum(relative, (_rms(error) / rms.clamp(min=_SMALLEST_RMS)).max())
        squares += rms.square().sum()
    exact = stage == LOGITS and ours.dtype.itemsize >= 4 and theirs.dtype.itemsize >= 4
    agrees = bool(relative <= tolerance) and (not exact or bool(largest <= tolerance))
    total = (squares / max(ours.shape[0], 1)).sqrt()
    return StageError(stage, float(largest), float(relative), float(total), agrees)


def _chunks(ours: Tensor, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows in float64, a few at a time: logits of a long prompt are large."""
    for at in range(0, ours.shape[0], _CHUNK_ROWS):
        rows = slice(at, at + _CHUNK_ROWS)
        yield ours[rows].double(), theirs[rows].double()


def _rms(rows: Tensor) -> Tensor:
    return rows.square().mean(dim=-1).sqrt()


def _same_choice(ours: Trace, theirs: Trace) -> tuple[int, int] | None:
    if LOGITS not in ours:
        return None
    mine, reference = ours[LOGITS], theirs[LOGITS]
    same = mine.argmax(dim=-1) == reference.argmax(dim=-1)
    for rows in (mine, reference):  # to argmax NaN is the largest; it is no choice
        same &= ~rows.isnan().any(dim=-1)
    return int(same.sum()), same.numel()
