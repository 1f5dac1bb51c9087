"""TensorFile: the bytes of one safetensors file, read where they are wanted.

A run of bytes goes from the page cache straight into the memory it is for: nothing of the file
stays mapped, and the pages of a new parameter are touched once. Slices that are not one run
(columns of a matrix) are copied from a mapping, whose pages are given back at once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from ..errors import CheckpointFileError
from ..parallel import Box, box_numel, box_slices, whole
from .mapping import give_back
from .source import TensorInfo


class TensorFile:
    """One file; its reads may be called from several threads.

    Args:
        path: of the file.
        offsets: where each tensor starts, in bytes from the start of the file.
        state: of the file when its header was read.
    """

    def __init__(self, path: Path, offsets: Mapping[str, int], state: os.stat_result) -> None:
        """Nothing is opened yet."""
        self._path, self._offsets, self._state = path.absolute(), offsets, state
        self._mapping: mmap.mmap | None = None
        self._lock = Lock()

    def view(self, info: TensorInfo, box: Box) -> Tensor:
        """A slice as a view of mapped memory; not to be written.

        Raises:
            CheckpointFileError: the file was changed since its header was read.
        """
        count = box_numel(whole(info.shape))
        if not count:
            return torch.empty(info.shape, dtype=info.dtype)[box_slices(box)]
        full = torch.frombuffer(
            self._mapped(), dtype=info.dtype, count=count, offset=self._offsets[info.name]
        )
        return full.view(info.shape)[box_slices(box)]

    def read_into(self, info: TensorInfo, box: Box, out: Tensor) -> None:
        """Fill ``out``, contiguous on the CPU, with a slice of its shape and the stored dtype.

        Raises:
            CheckpointFileError: the file was changed since its header was read.
        """
        if not out.numel():
            return
        first, last = self._reach(info, box)
        if last - first == out.nbytes:
            self._read(first, out.reshape(-1).view(torch.uint8).numpy().data)
            return
        out.copy_(self.view(info, box))
        give_back(self._mapped(), first, last)

    def _read(self, start: int, memory: memoryview) -> None:
        with self._open() as stream:
            stream.seek(start)
            while memory:
                count = stream.readinto(memory)
                if not count:
                    raise self._changed("it ends early")
                memory = memory[count:]

    def _mapped(self) -> mmap.mmap:
        with self._lock:
            if self._mapping is None:
                with self._open() as stream:
                    # Copy on write: torch wants memory that could be written; the file stays.
                    self._mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            return self._mapping

    def _open(self) -> FileIO:
        """The file, as it was when its header was read."""
        try:
            stream = FileIO(self._path)
        except OSError as error:
            raise CheckpointFileError(
                str(self._path), f"cannot be opened any more ({error.strerror}); put it back"
            ) from error
        was, now = self._state, os.fstat(stream.fileno())
        if (now.st_size, now.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
            stream.close()
            raise self._changed(f"it had {was.st_size} bytes and has {now.st_size}")
        return stream

    def _changed(self, how: str) -> CheckpointFileError:
        return CheckpointFileError(
            str(self._path),
            f"was changed after its header was read ({how}); load again when nobody writes it",
        )

    def _reach(self, info: TensorInfo, box: Box) -> tuple[int, int]:
        """Bytes of the file from the first to the last of a slice that is not empty."""
        first = last = 0
        step = info.dtype.itemsize
        for (start, stop), size in zip(reversed(box), reversed(info.shape), strict=True):
            first, last = first + start * step, last + (stop - 1) * step
            step *= size
        at = self._offsets[info.name]
        return at + first, at + last + info.dtype.itemsize
