"""SafetensorsSource: lazy slices of mapped safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointFileError, WeightError
from ..parallel import Box, box_slices, whole
from .directory import CheckpointFiles
from .file_checks import NOT_A_FILE, check_tensor, mistaken_for
from .safetensors_header import refuse_doubled_names
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


class SafetensorsSource:
    """The tensors of one or several safetensors files.

    Files are mapped; a slice is a view of the mapping, so only the pages it covers are read.

    Args:
        files: what to open, and which file an index gives each tensor.

    Raises:
        CheckpointFileError: a broken file, a dtype that cannot be read, a tensor the index
            promises and its file lacks, or one that two files hold without an index to choose.
    """

    format = "hf"

    def __init__(self, files: CheckpointFiles) -> None:
        """Map the files and read their headers."""
        self.description = _describe(files)
        self.notes = files.notes
        self._infos: dict[str, TensorInfo] = {}
        self._open: dict[str, Any] = {}
        try:
            for path in files.files:
                self._add(path, files.index)
            if files.index is not None:
                _check_promises(files.index, self._infos)
        except BaseException:
            self.close()
            raise

    def infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, file after file."""
        return self._infos

    def read(self, name: str, box: Box) -> Tensor:
        """A view of mapped memory."""
        info = self._infos[name]
        handle = self._open.get(info.file)
        if handle is None:
            raise WeightError(f"{name}: {self.description} is closed; open it again to read")
        if box == whole(info.shape):
            tensor: Tensor = handle.get_tensor(name)
        else:
            tensor = handle.get_slice(name)[box_slices(box)]
        return tensor

    def close(self) -> None:
        """Unmap the files; views that are still held keep theirs."""
        while self._open:
            _, handle = self._open.popitem()
            handle.__exit__(None, None, None)

    def _add(self, path: Path, index: Mapping[str, Path] | None) -> None:
        """Open one file and enter its tensors, except copies the index gives to another file."""
        handle = _open_file(path)
        self._open[str(path)] = handle
        refuse_doubled_names(path)
        copies: list[str] = []
        for name in handle.offset_keys():
            if index is not None and index.get(name, path) != path:
                copies.append(name)
                continue
            if name in self._infos:
                raise CheckpointFileError(
                    str(path),
                    f"holds {name!r}, and so does {self._infos[name].file}; nothing says which copy "
                    "is right: remove one, or add an index",
                )
            self._infos[name] = _info(path, name, handle.get_slice(name))
        if copies:
            self.notes += (
                f"{path.name}: {len(copies)} tensors are stored again here and left unread, the "
                f"index points elsewhere: {', '.join(copies[:6])}{', …' if copies[6:] else ''}",
            )


def _describe(files: CheckpointFiles) -> str:
    if len(files.files) == 1:
        return str(files.files[0])
    return f"{files.files[0].parent} ({len(files.files)} safetensors files)"


def _info(path: Path, name: str, header: Any) -> TensorInfo:
    stored, shape = header.get_dtype(), tuple(header.get_shape())
    check_tensor(path, name, len(shape))
    if stored not in DTYPES:
        raise CheckpointFileError(
            str(path), f"stores {name!r} as {stored}, which torch here cannot read; convert it"
        )
    return TensorInfo(name, shape, DTYPES[stored], str(path))


def _check_promises(index: Mapping[str, Path], infos: Mapping[str, TensorInfo]) -> None:
    """Every tensor the index names must be in its file."""
    absent = [name for name in index if name not in infos]
    if absent:
        more = f" and {len(absent) - 1} more" if absent[1:] else ""
        raise CheckpointFileError(
            str(index[absent[0]]),
            f"lacks {absent[0]!r}{more}, which the index says it holds; index and shards are of "
            "different saves: download both again",
        )


def _open_file(path: Path) -> Any:
    if not path.is_file():  # opening a pipe would wait for its other end
        raise CheckpointFileError(str(path), NOT_A_FILE)
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
