"""SafetensorsSource: lazy slices of safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointFileError, WeightError
from ..parallel import Box
from .directory import CheckpointFiles
from .file_checks import NOT_A_FILE, mistaken_for
from .gathering import Gathering
from .safetensors_file import TensorFile
from .safetensors_header import read_header
from .source import TensorInfo


class SafetensorsSource:
    """The tensors of one or several safetensors files.

    Only what a slice covers is read: into the memory it is for, or as a view of a mapping.

    Args:
        files: what to open, and which file an index gives each tensor.

    Raises:
        CheckpointFileError: a broken file, a dtype that cannot be read, a tensor the index
            promises and its file lacks, or one that two files hold without an index to choose.
    """

    format = "hf"

    def __init__(self, files: CheckpointFiles) -> None:
        """Read the headers."""
        self.description = describe_files(files)
        self._files: dict[str, TensorFile] = {}
        gathered = Gathering(files.index)
        for path in files.files:
            gathered.add(path, self._tensors(path))
        gathered.check_promises()
        self._infos = gathered.infos
        self.notes = files.notes + gathered.notes

    def infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, file after file."""
        return self._infos

    def read(self, name: str, box: Box) -> Tensor:
        """A view of mapped memory."""
        info = self._infos[name]
        return self._file(info).view(info, box)

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        """Fill ``out``; nothing of the file stays mapped."""
        info = self._infos[name]
        self._file(info).read_into(info, box, out)

    def close(self) -> None:
        """Let the files go; views that are still held keep theirs mapped."""
        self._files = {}

    def _file(self, info: TensorInfo) -> TensorFile:
        file = self._files.get(info.file)
        if file is None:
            raise WeightError(f"{info.name}: {self.description} is closed; open it again to read")
        return file

    def _tensors(self, path: Path) -> Iterator[TensorInfo]:
        """Read the header of one file."""
        if not os.path.isfile(path):  # opening a pipe would wait for its other end
            raise CheckpointFileError(str(path), NOT_A_FILE)
        state = path.stat()  # before anything is read: what comes later is compared with it
        _ask_library(path)
        header = read_header(path)
        starts = {entry.name: header.data_start + entry.start for entry in header.entries}
        self._files[str(path)] = TensorFile(path, starts, state)
        return (entry.info(path) for entry in header.entries)


def describe_files(files: CheckpointFiles) -> str:
    """A checkpoint in a few words."""
    if len(files.files) == 1:
        return str(files.files[0])
    return f"{files.files[0].parent} ({len(files.files)} safetensors files)"


def _ask_library(path: Path) -> None:
    """Whether the library takes the file: it refuses hostile headers before they cost memory.

    Raises:
        CheckpointFileError: it does not.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointFileError(str(path), _diagnose(path, error)) from error


def _diagnose(path: Path, error: Exception) -> str:
    """What a file that is no safetensors file looks like."""
    return mistaken_for(path) or (
        f"cannot be read as safetensors ({error}); it has {path.stat().st_size} bytes and is most "
        "likely truncated or damaged: fetch it again"
    )
