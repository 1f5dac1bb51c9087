"""Copying: one part from the source into its parameter. Called by several threads at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import WeightError
from ..parallel import Box, box_shape, box_slices
from .conversion import overflows
from .parameters import ParameterTable
from .parts import PART_BYTES, Part
from .source import FileSource, TensorInfo, WeightSource
from .values import Sight, ValueCheck


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of one part.

    Args:
        part: which.
        overflow: finite values became infinite in the parameter's dtype.
        sight: what its values showed; None where nobody looks.
    """

    part: Part
    overflow: bool
    sight: Sight | None


class Copier:
    """Copies parts; changes nothing but the parameters' memory.

    A source that can fill memory fills the parameter itself, where dtype and layout allow it, and
    otherwise a buffer of the thread's that stays in the cache.

    Args:
        source: open.
        table: parameters to fill.
        check: looks at the values; None where nobody does.
    """

    def __init__(
        self, source: WeightSource, table: ParameterTable, check: ValueCheck | None
    ) -> None:
        """Nothing is read yet."""
        self._source, self._table, self._check = source, table, check
        self._fills = source if isinstance(source, FileSource) else None
        self._buffers = threading.local()

    def copy(self, part: Part) -> Copied:
        """Copy one part.

        Raises:
            WeightError: the source gives another slice than it promised.
        """
        try:
            return self._copy(part)
        except Exception as error:
            error.add_note(f"while {part.tensor.name} was copied from {part.tensor.file}")
            raise

    def _copy(self, part: Part) -> Copied:
        filled = self._table.parameters[part.parameter].data[box_slices(part.target)]
        target = filled.view(box_shape(part.source))
        values = self._values(part.tensor, part.source, target)
        if values is not target:
            target.copy_(values)
        check = self._check
        sight = None if check is None else check.observe(part.tensor, part.source, values)
        return Copied(part, overflows(values, target), sight)

    def _values(self, tensor: TensorInfo, box: Box, target: Tensor) -> Tensor:
        """The slice as stored: the target itself, a buffer, or memory of the source."""
        if self._fills is not None:
            plain = target.device.type == "cpu" and target.is_contiguous()
            out = target if plain and target.dtype == tensor.dtype else self._buffer(tensor, box)
            self._fills.read_into(tensor.name, box, out)
            return out
        values = self._source.read(tensor.name, box)
        if values.shape != target.shape or values.dtype != tensor.dtype:
            raise WeightError(
                f"{self._source.description} gave {tensor.name}{list(box)} as {values.dtype} "
                f"{list(values.shape)}, promised {tensor.dtype} {list(target.shape)}; "
                "the source is broken"
            )
        return values

    def _buffer(self, tensor: TensorInfo, box: Box) -> Tensor:
        """Memory of this thread's for one slice; the next one takes its place."""
        need, held = tensor.nbytes(box), getattr(self._buffers, "bytes", None)
        if held is None or held.numel() < need:
            held = torch.empty(max(need, PART_BYTES), dtype=torch.uint8)
            self._buffers.bytes = held
        buffer: Tensor = held[:need].view(tensor.dtype).view(box_shape(box))
        return buffer
