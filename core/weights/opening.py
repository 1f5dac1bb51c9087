"""open_source: a path to an open WeightSource."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import CheckpointFileError
from .directory import (
    GGUF_SUFFIX,
    INDEX_SUFFIX,
    PICKLE_SUFFIXES,
    TENSORS_SUFFIX,
    CheckpointFiles,
    checkpoint_files,
    has_suffix,
    read_index,
    refuse_pickle,
)
from .safetensors_source import SafetensorsSource
from .source import WeightSource


def open_source(path: str | os.PathLike[str]) -> WeightSource:
    """Open a checkpoint: a directory, a safetensors file, an index, or a GGUF file.

    Reads headers only. Close the source when the weights are loaded.

    Raises:
        CheckpointFileError: nothing there that can be read, or a broken file; pickles are
            refused with the command that converts them.
        MissingDependency: a GGUF file, and the gguf package is not installed.
    """
    path = Path(path)
    if not path.is_dir():
        return _open_file(path)
    files = checkpoint_files(path)
    if has_suffix(files.files[0].name, GGUF_SUFFIX):
        return _open_file(files.files[0])
    return SafetensorsSource(files)


def _open_file(path: Path) -> WeightSource:
    if not path.exists():
        raise CheckpointFileError(str(path), "does not exist; give a file or a directory")
    if has_suffix(path.name, INDEX_SUFFIX):
        return SafetensorsSource(read_index(path))
    if has_suffix(path.name, TENSORS_SUFFIX):
        return SafetensorsSource(CheckpointFiles((path,)))
    if has_suffix(path.name, GGUF_SUFFIX):
        from .gguf import GGUFSource

        return GGUFSource(path)
    if has_suffix(path.name, *PICKLE_SUFFIXES):
        raise refuse_pickle(path)
    raise CheckpointFileError(
        str(path), "is neither a .safetensors nor a .gguf file; give one of those or a directory"
    )
