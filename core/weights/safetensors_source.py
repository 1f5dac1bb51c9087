"""SafetensorsSource: lazy slices of safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointFileError, WeightError
from ..parallel import Box
from .directory import CheckpointFiles
from .file_checks import NOT_A_FILE, check_tensor, mistaken_for
from .gathering import Gathering
from .safetensors_file import TensorFile
from .safetensors_header import DTYPES, data_starts
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
        if not path.is_file():  # opening a pipe would wait for its other end
            raise CheckpointFileError(str(path), NOT_A_FILE)
        state = path.stat()  # before anything is read: what comes later is compared with it
        with _open_file(path) as handle:
            self._files[str(path)] = TensorFile(path, data_starts(path), state)
            for name in handle.offset_keys():
                header = handle.get_slice(name)
                yield tensor_info(path, name, header.get_dtype(), tuple(header.get_shape()))


def describe_files(files: CheckpointFiles) -> str:
    """A checkpoint in a few words."""
    if len(files.files) == 1:
        return str(files.files[0])
    return f"{files.files[0].parent} ({len(files.files)} safetensors files)"


def tensor_info(path: Path, name: str, stored: str, shape: tuple[int, ...]) -> TensorInfo:
    """What a header says of one tensor.

    Args:
        path: its file.
        name: as stored.
        stored: dtype as safetensors calls it.
        shape: as stored.

    Raises:
        CheckpointFileError: a dtype that cannot be read, or a name that no trainer writes.
    """
    check_tensor(path, name, len(shape))
    if stored not in DTYPES:
        raise CheckpointFileError(
            str(path),
            f"stores {name!r} as {stored}, which torch here cannot read; convert it",
        )
    return TensorInfo(name, shape, DTYPES[stored], str(path))


def _open_file(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointFileError(str(path), _diagnose(path, error)) from error


def _diagnose(path: Path, error: Exception) -> str:
    """What a file that is no safetensors file looks like."""
    return mistaken_for(path) or (
        f"cannot be read as safetensors ({error}); it has {path.stat().st_size} bytes and is most "
        "likely truncated or damaged: fetch it again"
    )
