"""One GGUF file's header, byte by byte: metadata and tensor table, nothing dequantised.

::

    "GGUF" | version u32 | tensors u64 | entries u64
    entries   key, value type u32, value          strings are a u64 length and UTF-8 bytes
    tensors   name, dims u32, each u64, type u32, offset u64
    (padding to general.alignment)
    data      each tensor at its offset

``gguf.GGUFReader`` makes several arrays for every string and needs seconds for a vocabulary; here
a vocabulary takes a pass over the mapped bytes. Every length is checked against the file before
anything is made of it, so a hostile header costs no more memory than its own size explains.

Source:
    ggml, docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import CheckpointFileError, MissingDependency
from .file_checks import check_tensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_HEADER = struct.Struct("<4sIQQ")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_MOST_DIMS = 4
_LEAST_ENTRY, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


def require_gguf() -> ModuleType:
    """The ``gguf`` package.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise MissingDependency(
            "reading a GGUF file", "gguf>=0.19", "pip install 'archzoo[gguf]'"
        ) from error
    return gguf  # type: ignore[no-any-return]  # mypy skips the package, so it is Any


@dataclass(frozen=True)
class GGUFTensor:
    """Where one tensor lies and how it is stored.

    Args:
        name: GGUF name, such as ``blk.0.attn_q.weight``.
        shape: rows first, as PyTorch and Hugging Face say it (the file says it reversed).
        type_id: ggml type.
        type_name: its name, such as ``Q4_1``.
        block: elements of one block along the last dimension, and the bytes it takes.
        start: first byte, from the start of its file.
        nbytes: bytes it takes.
        path: its file; a split model has several.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    block: tuple[int, int]
    start: int
    nbytes: int
    path: Path


@dataclass(frozen=True)
class GGUFPart:
    """What the header of one file says. Holds no mapping and no handle, so it pickles.

    Args:
        path: the file.
        size: its length in bytes.
        metadata: key to plain Python value; arrays are lists.
        tensors: name to place and type, in file order.
    """

    path: Path
    size: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, GGUFTensor]


def read_part(path: Path) -> GGUFPart:
    """Parse the header of one file.

    Raises:
        CheckpointFileError: not a GGUF file, cut short, or contradicting itself.
        MissingDependency: the ``gguf`` package is not installed.
    """
    gguf = require_gguf()
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < _HEADER.size:
                raise broken(path, f"has {size} bytes, a GGUF header alone takes 24")
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return GGUFPart(path, size, *_Parser(path, data, size, gguf).parse())
    except OSError as error:
        raise broken(path, f"cannot be read: {error.strerror or error}") from error


def broken(path: Path, problem: str) -> CheckpointFileError:
    """An error about a file, for the caller to raise."""
    return CheckpointFileError(str(path), problem)


class _Parser:
    """A cursor over the mapped file that never reads past its end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int, gguf: ModuleType) -> None:
        self.path, self.data, self.gguf = path, data, gguf
        self.size, self.at = size, 0

    def broken(self, problem: str) -> CheckpointFileError:
        """An error about this file."""
        return broken(self.path, problem)

    def parse(self) -> tuple[dict[str, object], dict[str, GGUFTensor]]:
        """Metadata and tensor table."""
        magic, version, tensors, entries = _HEADER.unpack_from(self.data, self.take(_HEADER.size))
        self.check_version(magic, version)
        for count, least, what in (
            (entries, _LEAST_ENTRY, "metadata entries"),
            (tensors, _LEAST_TENSOR, "tensors"),
        ):
            if count * least > self.size:
                raise self.broken(
                    f"states {count} {what}, which {self.size} bytes cannot hold; "
                    "the header is damaged, download the file again"
                )
        metadata = self.entries(entries)
        table = [self.tensor() for _ in range(tensors)]
        return metadata, self.place(table, self.alignment(metadata))

    def check_version(self, magic: bytes, version: int) -> None:
        """Refuse what is not little-endian GGUF 2 or 3."""
        if magic != _MAGIC:
            raise self.broken(
                f"starts with {magic!r}, a GGUF file with {_MAGIC!r}; "
                "it is another format, or a pointer or error page saved in its place"
            )
        if version and not version & 0xFFFF:
            raise self.broken("is big-endian; convert it to a little-endian GGUF file")
        if version not in _VERSIONS:
            raise self.broken(
                f"is GGUF version {version}, versions 2 and 3 are read; convert the model again"
            )

    def take(self, size: int, what: str = "the header") -> int:
        """Step over size bytes and give the place where they begin."""
        start = self.at
        if size > self.size - start:
            raise self.broken(
                f"{what} at byte {start} takes {size} bytes, {self.size - start} are left; "
                "the file is cut short or damaged, download it again"
            )
        self.at = start + size
        return start

    def u32(self) -> int:
        """The next u32."""
        return int(_U32.unpack_from(self.data, self.take(4))[0])

    def u64(self) -> int:
        """The next u64."""
        return int(_U64.unpack_from(self.data, self.take(8))[0])

    def string(self, what: str) -> str:
        """The next string."""
        length = self.u64()
        start = self.take(length, what)
        return self.decode(self.data[start : self.at], what)

    def decode(self, raw: bytes, what: str) -> str:
        """Bytes as text."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.broken(f"{what} is not UTF-8: {raw[:40]!r}") from error

    def entries(self, count: int) -> dict[str, object]:
        """All metadata entries."""
        metadata: dict[str, object] = {}
        for _ in range(count):
            key = self.string("a metadata key")
            if key in metadata:
                raise self.broken(f"states {key!r} twice in its metadata")
            metadata[key] = self.value(key, self.u32())
        return metadata

    def value(self, key: str, kind: int) -> object:
        """One value of a stated type."""
        if kind == _STRING:
            return self.string(key)
        if kind != _ARRAY:
            return self.numbers(key, kind, 1)[0]
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.strings(key, count)
        return self.numbers(key, kind, count)

    def numbers(self, key: str, kind: int, count: int) -> list[object]:
        """The next count numbers."""
        if kind not in _NUMBERS:
            raise self.broken(
                f"{key} has value type {kind}, known are numbers, strings and arrays of them"
            )
        dtype = np.dtype(_NUMBERS[kind])
        start = self.take(count * dtype.itemsize, key)
        # A copy, so that no array keeps the mapping open.
        raw = self.data[start : self.at]
        return list(np.frombuffer(raw, dtype, count).tolist())

    def strings(self, key: str, count: int) -> list[str]:
        """The next count strings: the hot loop, a vocabulary has 10^5 of them."""
        start, data, size, length_at = self.at, self.data, self.size, _U64.unpack_from
        self.take(count * 8, key)
        values: list[str] = []
        for _ in range(count):
            end = start + 8 + length_at(data, start)[0] if start + 8 <= size else size + 1
            if end > size:
                self.at = start
                self.string(f"{key}[{len(values)}]")
            values.append(self.decode(data[start + 8 : end], key))
            start = end
        self.at = start
        return values

    def alignment(self, metadata: dict[str, object]) -> int:
        """Where tensor data may start, in bytes."""
        value = metadata.get("general.alignment", 32)
        if not isinstance(value, int) or value < 8 or value & (value - 1):
            raise self.broken(f"general.alignment is {value!r}, not a power of two from 8 up")
        return value

    def tensor(self) -> GGUFTensor:
        """The next row of the tensor table; ``start`` is still relative to the data."""
        name = self.string("a tensor name")
        count = self.u32()
        if count > _MOST_DIMS:
            raise self.broken(f"{name} has {count} dimensions, at most {_MOST_DIMS} are known")
        check_tensor(self.path, name, count)
        shape = tuple(self.u64() for _ in range(count))[::-1]
        type_id, offset = self.u32(), self.u64()
        try:
            kind = self.gguf.GGMLQuantizationType(type_id)
        except ValueError as error:
            raise self.broken(
                f"{name} has ggml type {type_id}, which this gguf package does not know; "
                "run: pip install -U gguf"
            ) from error
        block, size = self.gguf.GGML_QUANT_SIZES[kind]
        if shape and shape[-1] % block:
            raise self.broken(
                f"{name} has rows of {shape[-1]} elements, not a multiple of the {block} that "
                f"one {kind.name} block holds"
            )
        nbytes = prod(shape) // block * size
        place = offset, nbytes, self.path
        return GGUFTensor(name, shape, type_id, kind.name, (block, size), *place)

    def place(self, table: list[GGUFTensor], alignment: int) -> dict[str, GGUFTensor]:
        """The table with absolute places, each inside the file and clear of the others."""
        data = -(-self.at // alignment) * alignment
        placed: dict[str, GGUFTensor] = {}
        for row in table:
            if row.name in placed:
                raise self.broken(f"has two tensors named {row.name!r}")
            start = data + row.start
            if row.start % alignment or start + row.nbytes > self.size:
                raise self.broken(
                    f"{row.name} takes {row.nbytes} bytes at {start}, the file has {self.size} and "
                    f"an alignment of {alignment}; it is cut short or damaged, download it again"
                )
            placed[row.name] = replace(row, start=start)
        self.check_overlap(placed)
        return placed

    def check_overlap(self, placed: dict[str, GGUFTensor]) -> None:
        """Refuse tensors that share bytes."""
        filled = sorted((t for t in placed.values() if t.nbytes), key=lambda t: t.start)
        for one, two in zip(filled, filled[1:], strict=False):
            if one.start + one.nbytes > two.start:
                raise self.broken(f"{one.name} and {two.name} overlap; the header is damaged")
