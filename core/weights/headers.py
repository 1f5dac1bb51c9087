"""HeaderSource: what the headers of a checkpoint state, though its data may not be here.

Three forms, told from each other by what lies there::

    model-00001-of-00002.safetensors           whole files: their data is not touched
    model-00001-of-00002.safetensors           files that end where their header ends
    model.safetensors.headers.json             the headers as JSON, and no .safetensors file

The last is ``{file: {"size": bytes of the whole file, "header": its JSON header}}``; an index beside
it counts as it does beside files. A file that breaks off in its data is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from ..errors import CheckpointFileError, WeightError
from ..parallel import Box
from .directory import (
    GGUF_SUFFIX,
    INDEX_SUFFIX,
    TENSORS_SUFFIX,
    CheckpointFiles,
    has_suffix,
    is_relative_name,
    names_in,
    read_index,
    several_checkpoints,
)
from .file_checks import read_json
from .gathering import Gathering
from .safetensors_header import Entry, entries_of, read_header
from .safetensors_source import describe_files
from .source import Stored, TensorInfo

HEADERS_SUFFIX = ".safetensors.headers.json"
_MOST_BYTES = 64 << 20
"""Headers of 200000 tensors have about 32 MB."""


@dataclass(frozen=True)
class HeaderSource:
    """Tensors of which names, shapes, dtypes and places are known.

    Args:
        description: what was read.
        tensors: by name, file after file.
        places: where each tensor's bytes lie.
        notes: what was left aside and why.
    """

    description: str
    tensors: Mapping[str, TensorInfo]
    places: Mapping[str, Stored]
    notes: tuple[str, ...] = ()
    format: str = "hf"

    def infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self.tensors

    def stored(self, name: str) -> Stored:
        """Where a tensor's bytes lie."""
        return self.places[name]

    def read(self, name: str, box: Box) -> Tensor:
        """Refuse.

        Raises:
            WeightError: always.
        """
        raise WeightError(
            f"{name}: {self.description} was opened for its headers; open_source reads tensors"
        )

    def close(self) -> None:
        """Nothing is open."""


def stated_headers(path: Path) -> HeaderSource | None:
    """Headers that a JSON file states: this one, or that of a directory without files of tensors.

    None where there is none; then files count.

    Raises:
        CheckpointFileError: several of them, or one that contradicts itself, its index or its sizes.
    """
    if has_suffix(path.name, HEADERS_SUFFIX) and os.path.isfile(path):
        return _of_json(path, names_in(path.parent))
    if not os.path.isdir(path):
        return None
    names = names_in(path)
    if any(has_suffix(name, TENSORS_SUFFIX, GGUF_SUFFIX) for name in names):
        return None
    stated = [name for name in names if has_suffix(name, HEADERS_SUFFIX)]
    return _of_json(path / _only(path, stated), names) if stated else None


def headers_of_files(files: CheckpointFiles) -> HeaderSource:
    """Headers of safetensors files, which are whole or end where their header ends.

    Raises:
        CheckpointFileError: a file that breaks off elsewhere, or headers that contradict themselves,
            the index or the files' sizes.
    """
    collected = _Collected(files.index)
    bare = 0
    for path in files.files:
        header = read_header(path)
        bare += header.bare
        collected.add(path, header.entries, header.data_start)
    notes = (*files.notes, *([_bare(bare, len(files.files))] if bare else ()))
    return collected.source(describe_files(files), notes)


def _bare(count: int, files: int) -> str:
    return f"{count} of {files} files hold their headers only: nothing can be loaded from them here"


def _of_json(path: Path, names: list[str]) -> HeaderSource:
    """Headers stated in one file, with the index beside it if there is one."""
    indexes = [name for name in names if has_suffix(name, INDEX_SUFFIX)]
    index: Mapping[str, Path] | None = None
    if indexes:
        main = path.parent / _only(path.parent, indexes)
        index = read_index(main, present=False).index
    stated = read_json(path, _MOST_BYTES, "JSON of headers")
    if not isinstance(stated, dict) or not stated:
        _refuse(path, "is no object of file names")
    collected = _Collected(index)
    for name in sorted(stated):
        size, header = _stated_file(path, name, stated[name])
        file = path.parent / name
        entries, data = entries_of(file, header)
        if size < data:
            _refuse(path, f"states {size} bytes for {name}, whose tensors alone take {data}")
        collected.add(file, entries, size - data)
    what = f"{path} (headers of {len(stated)} files)"
    return collected.source(what, ("the headers are stated by a JSON file, no weights are here",))


def _stated_file(path: Path, name: str, stated: object) -> tuple[int, dict[str, Any]]:
    """Size and header of one file, as the JSON states them."""
    if not is_relative_name(name):
        _refuse(path, f"names {ascii(name[:80])}, which is no safetensors file beside it")
    size = stated.get("size") if isinstance(stated, dict) else None
    header = stated.get("header") if isinstance(stated, dict) else None
    if isinstance(size, bool) or not isinstance(size, int) or not isinstance(header, dict):
        _refuse(path, f"states neither size nor header of {name}")
    return size, header


def _refuse(path: Path, problem: str) -> NoReturn:
    raise CheckpointFileError(
        str(path), f'{problem}; write {{file: {{"size": bytes, "header": its JSON header}}}}'
    )


def _only(directory: Path, names: list[str]) -> str:
    if len(names) > 1:
        raise several_checkpoints(directory, names)
    return names[0]


class _Collected:
    """Tensors and places of several files."""

    def __init__(self, index: Mapping[str, Path] | None) -> None:
        self._gathered = Gathering(index)
        self._places: dict[tuple[str, str], Stored] = {}

    def add(self, path: Path, entries: list[Entry], data_start: int) -> None:
        """Enter the tensors of one file, whose data starts at a byte of it."""
        for entry in entries:
            start, stop = data_start + entry.start, data_start + entry.stop
            self._places[str(path), entry.name] = Stored(str(path), start, stop, entry.dtype)
        self._gathered.add(path, (entry.info(path) for entry in entries))

    def source(self, description: str, notes: tuple[str, ...]) -> HeaderSource:
        """All of them as one checkpoint."""
        self._gathered.check_promises()
        infos = self._gathered.infos
        places = {name: self._places[info.file, name] for name, info in infos.items()}
        return HeaderSource(description, infos, places, (*notes, *self._gathered.notes))
