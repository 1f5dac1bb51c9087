"""WeightSource: names, shapes and lazy slices of a checkpoint, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import WeightError
from ..parallel import Box, box_numel, box_slices, whole

_COMPARE_BYTES = 16 << 20
"""Bytes of each tensor that a comparison holds at once."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint's header says of one tensor.

    Args:
        name: checkpoint name.
        shape: full shape.
        dtype: as ``read`` will give it.
        file: where it is stored, for messages.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str

    def nbytes(self, box: Box) -> int:
        """Bytes of a slice."""
        return box_numel(box) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor's bytes lie.

    Args:
        file: its file.
        start, stop: bytes of the file.
        kind: dtype or block type, as the file calls it.
    """

    file: str
    start: int
    stop: int
    kind: str


class WeightSource(Protocol):
    """A checkpoint that is open for reading."""

    @property
    def description(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def format(self) -> str:
        """How its names are spelled, a key of the name rules: ``hf`` or ``gguf``."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left aside and why, one line each."""
        ...

    def infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by checkpoint name, in storage order; reads headers only."""
        ...

    def read(self, name: str, box: Box) -> Tensor:
        """A slice of one tensor: a view of mapped memory or a new tensor; not to be changed."""
        ...

    def close(self) -> None:
        """Give mappings and files back. Reading afterwards is an error."""
        ...


@runtime_checkable
class FileSource(WeightSource, Protocol):
    """A source whose slices may be read by several threads at once."""

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        """Fill memory with a slice of one tensor; no page of a file stays mapped for it.

        Args:
            name: of the tensor.
            box: of the slice.
            out: contiguous, on the CPU, of the slice's shape and the tensor's dtype.
        """
        ...


@runtime_checkable
class PlacedSource(WeightSource, Protocol):
    """A source of files that says where the bytes of each tensor lie."""

    def stored(self, name: str) -> Stored:
        """Where a tensor's bytes lie."""
        ...


class IterableSource:
    """A checkpoint given as (name, tensor) pairs.

    The plan comes before the first write, so all pairs are held until the source is closed; an
    iterator that makes its tensors on the fly costs their memory.

    Args:
        pairs: names and full tensors.

    Raises:
        WeightError: a name that comes twice, or something that is no (name, tensor) pair.
    """

    description = "an iterator of tensors"
    format = "hf"
    notes: tuple[str, ...] = ()

    def __init__(self, pairs: Iterable[tuple[str, Tensor]]) -> None:
        """Take all pairs."""
        self._tensors: dict[str, Tensor] = {}
        for item in pairs:
            name, tensor = _pair(item)
            if name in self._tensors:
                raise WeightError(f"{name} comes twice in {self.description}; give each name once")
            self._tensors[name] = tensor

    def infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the order given."""
        return {
            name: TensorInfo(name, tuple(tensor.shape), tensor.dtype, self.description)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, box: Box) -> Tensor:
        """A view of the tensor given."""
        if name not in self._tensors:
            raise WeightError(f"{name}: {self.description} has no such tensor, or was closed")
        return self._tensors[name][box_slices(box)]

    def close(self) -> None:
        """Let the tensors go."""
        self._tensors = {}


def _pair(item: object) -> tuple[str, Tensor]:
    match item:
        case (str() as name, Tensor() as tensor):
            return name, tensor
    raise WeightError(
        f"weights must be (name, tensor) pairs, got {type(item).__name__}; "
        "pass open_source(path), a list of pairs or state_dict().items()"
    )


def source_tensors_equal(source: WeightSource, a: str, b: str) -> bool:
    """Whether two tensors of a checkpoint have equal shape, dtype and bytes; read in chunks.

    Raises:
        WeightError: no such tensor.
    """
    infos = source.infos()
    for name in (a, b):
        if name not in infos:
            raise WeightError(f"{source.description} has no tensor {name!r}")
    first, second = infos[a], infos[b]
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return all(
        torch.equal(_bytes(source.read(a, box)), _bytes(source.read(b, box)))
        for box in _row_chunks(first)
    )


def _row_chunks(info: TensorInfo) -> Iterable[Box]:
    """Boxes of whole rows that together cover the tensor."""
    box = whole(info.shape)
    if not info.shape or not box_numel(box):
        yield box
        return
    row_bytes = info.nbytes(box) // info.shape[0]
    rows = max(1, _COMPARE_BYTES // row_bytes)
    for start in range(0, info.shape[0], rows):
        yield ((start, min(start + rows, info.shape[0])), *box[1:])


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
