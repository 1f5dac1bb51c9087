"""The header of a safetensors file, by the library's own rules and one more.

::

    length u64 (little-endian) | JSON of that length | data

``safetensors`` refuses lengths, offsets and shapes that do not fit, but takes the last of two
tensors of one name. ``read_header`` also takes a file that ends where its data would start: enough
to plan by, and nothing that could be loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointFileError
from .file_checks import NOT_A_FILE, check_tensor, mistaken_for, once, unreadable
from .source import TensorInfo

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""safetensors' names of dtypes."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_MOST_HEADER_BYTES = 100_000_000
"""safetensors' limit."""
_MOST = 2**64 - 1
"""Largest size the library counts with."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as a header states it.

    Args:
        name: as stored.
        dtype: as safetensors calls it.
        shape: as stored.
        start, stop: bytes of the data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def info(self, path: Path) -> TensorInfo:
        """As a source's tensor, in its file."""
        return TensorInfo(self.name, self.shape, DTYPES[self.dtype], str(path))

    @staticmethod
    def all_of(path: Path, header: Mapping[str, Any]) -> Iterator[Entry]:
        """The tensors of a header, as it lists them.

        Args:
            path: its file, for messages.
            header: the JSON object.

        Raises:
            CheckpointFileError: something that is no tensor.
        """
        for name, stated in header.items():
            if name == _METADATA:
                _check_metadata(path, stated)
                continue
            match stated:
                case {"dtype": str() as dtype, "shape": list() as shape, "data_offsets": [a, b]}:
                    check_tensor(path, name, len(shape))
                    _check_dtype(path, name, dtype)
                    if all(map(_is_size, (*shape, a, b))):
                        yield Entry(name, dtype, tuple(shape), a, b)
                        continue
            raise _broken(
                path,
                f"states no dtype, shape and data_offsets of {ascii(name[:80])} that can be read",
            )


@dataclass(frozen=True)
class Header:
    """What the header of one file states.

    Args:
        entries: in the order of their data.
        data_start: byte of the file where data starts.
        bare: the file ends there, though tensors have data.
    """

    entries: list[Entry]
    data_start: int
    bare: bool


def read_header(path: Path) -> Header:
    """The header of a file that is whole, or ends with its header.

    Raises:
        CheckpointFileError: anything else, or a header that contradicts itself.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for its other end
        raise CheckpointFileError(str(path), NOT_A_FILE)
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            data_start = _LENGTH_BYTES + length
            if length > _MOST_HEADER_BYTES or data_start > size:
                raise _broken(path, f"starts with a header length of {length} in {size} bytes")
            text = stream.read(length)
    except OSError as error:
        raise CheckpointFileError(str(path), unreadable(error)) from error
    entries, data = entries_of(path, _object(path, text))
    bare = bool(data) and size == data_start
    if size != data_start + data and not bare:
        raise _broken(path, f"has {size} bytes, its header speaks of {data_start + data}")
    return Header(entries, data_start, bare)


def entries_of(path: Path, header: Mapping[str, Any]) -> tuple[list[Entry], int]:
    """The tensors of a header in the order of their data, and the bytes they take together.

    Args:
        path: its file, for messages.
        header: the JSON object.

    Raises:
        CheckpointFileError: what is no tensor, a gap, an overlap, or bytes that are not those of
            shape and dtype.
    """
    entries = sorted(Entry.all_of(path, header), key=lambda entry: (entry.start, entry.stop))
    end = 0
    for entry in entries:
        if entry.start != end:
            raise _broken(
                path,
                f"puts {ascii(entry.name[:80])} at bytes {entry.start} to {entry.stop} of its data, "
                f"the tensor before it ends at {end}",
            )
        need = prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if need != entry.stop - entry.start:
            raise _broken(
                path,
                f"gives {ascii(entry.name[:80])} {entry.stop - entry.start} bytes, {entry.dtype} "
                f"{list(entry.shape)} takes {need}",
            )
        end = entry.stop
    return entries, end


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(
            str(path),
            f"has a header that contradicts itself ({error}); get the checkpoint from its author",
        ) from error
    if not isinstance(found, dict):
        raise _broken(path, f"has a header that is no object but {type(found).__name__}")
    return found


def _check_dtype(path: Path, name: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise CheckpointFileError(
            str(path),
            f"stores {ascii(name[:80])} as {ascii(dtype[:80])}, which torch here cannot read; "
            "convert it",
        )


def _check_metadata(path: Path, stated: object) -> None:
    """Texts by name, or null."""
    if stated is None:
        return
    if not isinstance(stated, dict) or not all(isinstance(v, str) for v in stated.values()):
        raise _broken(path, "states metadata that are not texts by name")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _broken(path: Path, problem: str) -> CheckpointFileError:
    other = mistaken_for(path) if os.path.isfile(path) else None
    return CheckpointFileError(
        str(path), other or f"{problem}; it is truncated or damaged: fetch it again"
    )
