"""The architecture that a GGUF file states, read from the first bytes of its header."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from ..config.gguf import ARCHITECTURES
from ..errors import CheckpointFileError

_KEY = "general.architecture"
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_LONGEST = 2**16  # bytes of a key, or of the name; real ones have under 100


def gguf_architecture(path: str) -> tuple[tuple[str, ...], str]:
    """Architectures, as in config.json, and the file's own word for them.

    The reader behind ``load`` parses the whole header and needs numpy; this one goes up to the
    key, which writers put first.

    Args:
        path: the file.

    Returns:
        No architecture where archzoo knows none of that word.

    Raises:
        CheckpointFileError: no GGUF file, or one that does not say.
    """
    try:
        with open(path, "rb") as handle:
            stated = _Header(handle, path).stated()
    except OSError as error:
        raise CheckpointFileError(path, f"cannot be read: {error.strerror or error}") from error
    known = ARCHITECTURES.get(stated)
    return ((known[0],) if known else ()), stated


class _Header:
    """Reads values one after the other; whatever does not fit is refused by name."""

    def __init__(self, handle: BinaryIO, path: str) -> None:
        self._handle, self._path = handle, path
        self._left = os.fstat(handle.fileno()).st_size

    def stated(self) -> str:
        if self._take(4) != b"GGUF":
            raise self._broken("does not begin with 'GGUF'")
        self._number("<I")  # version
        self._number("<Q")  # tensors
        for _ in range(self._number("<Q")):
            key = self._text()
            kind = self._number("<I")
            if key == _KEY and kind == _STRING:
                return self._text()
            self._skip(kind)
        raise self._broken(f"states no {_KEY}")

    def _skip(self, kind: int) -> None:
        """Pass over a value; arrays hold no arrays in any file that is written today."""
        inner, count = (self._number("<I"), self._number("<Q")) if kind == _ARRAY else (kind, 1)
        if inner == _STRING:
            for _ in range(count):
                self._pass(self._number("<Q"))
        elif inner in _SIZES:
            self._pass(count * _SIZES[inner])
        else:
            raise self._broken(f"holds a value of type {inner}, which GGUF does not have")

    def _text(self) -> str:
        length = self._number("<Q")
        if length > _LONGEST:
            raise self._broken(f"holds a name of {length} bytes")
        return self._take(length).decode("utf-8", "replace")

    def _number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return number

    def _take(self, count: int) -> bytes:
        self._spend(count)
        return self._handle.read(count)

    def _pass(self, count: int) -> None:
        self._spend(count)
        self._handle.seek(count, os.SEEK_CUR)

    def _spend(self, count: int) -> None:
        if count > self._left:
            raise self._broken("ends in the middle of its header")
        self._left -= count

    def _broken(self, problem: str) -> CheckpointFileError:
        return CheckpointFileError(self._path, problem)
