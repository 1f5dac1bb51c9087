"""open_source: a path to an open WeightSource; open_headers: the same, of which nothing is read."""

from __future__ import annotations

import os
from pathlib import Path

from .directory import GGUF_SUFFIX, CheckpointFiles, files_at, has_suffix
from .headers import headers_of_files, stated_headers
from .safetensors_source import SafetensorsSource
from .source import PlacedSource, WeightSource


def open_source(path: str | os.PathLike[str]) -> WeightSource:
    """Open a checkpoint: a directory, a safetensors file, an index, or a GGUF file.

    Reads headers only. Close the source when the weights are loaded.

    Raises:
        CheckpointFileError: nothing there that can be read, or a broken file; pickles are
            refused with the command that converts them.
        MissingDependency: a GGUF file, and the gguf package is not installed.
    """
    files = files_at(Path(path))
    return _gguf(files) or SafetensorsSource(files)


def open_headers(path: str | os.PathLike[str]) -> PlacedSource:
    """What the headers of a checkpoint state: of one that ``open_source`` opens, or headers alone.

    Raises:
        CheckpointFileError: nothing there that can be read, or headers that contradict themselves,
            the index or the files' sizes.
        MissingDependency: as ``open_source``.
    """
    stated = stated_headers(Path(path))
    if stated is not None:
        return stated
    files = files_at(Path(path))
    return _gguf(files) or headers_of_files(files)


def _gguf(files: CheckpointFiles) -> PlacedSource | None:
    """The source of a GGUF model; None for other files."""
    if not has_suffix(files.files[0].name, GGUF_SUFFIX):
        return None
    from .gguf import GGUFSource

    return GGUFSource(files.files[0])
