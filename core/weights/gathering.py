"""Gathering: the tensors of several files as one checkpoint, as an index or the files say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import CheckpointFileError
from .source import TensorInfo

_SHOWN = 6
"""Names in a note."""


class Gathering:
    """Takes the tensors of one file after the other.

    Args:
        index: file of each tensor, where an index says so; None without an index.

    Attributes:
        infos: by name, file after file.
        notes: copies that were left aside, one line for each file.
    """

    def __init__(self, index: Mapping[str, Path] | None) -> None:
        """No file yet."""
        self._index = index
        self.infos: dict[str, TensorInfo] = {}
        self.notes: tuple[str, ...] = ()

    def add(self, path: Path, tensors: Iterable[TensorInfo]) -> None:
        """Enter the tensors of a file, except copies that the index gives to another file.

        Raises:
            CheckpointFileError: a tensor that another file holds, without an index to choose.
        """
        copies: list[str] = []
        for tensor in tensors:
            name = tensor.name
            if self._index is not None and self._index.get(name, path) != path:
                copies.append(name)
                continue
            if name in self.infos:
                raise CheckpointFileError(
                    str(path),
                    f"holds {name!r}, and so does {self.infos[name].file}; nothing says which copy "
                    "is right: remove one, or add an index",
                )
            self.infos[name] = tensor
        if copies:
            self.notes += (
                f"{path.name}: {len(copies)} tensors are stored again here and left unread, the "
                f"index points elsewhere: {', '.join(copies[:_SHOWN])}"
                f"{', …' if copies[_SHOWN:] else ''}",
            )

    def check_promises(self) -> None:
        """Every tensor the index names must have been in its file.

        Raises:
            CheckpointFileError: one was not.
        """
        if self._index is None:
            return
        absent = [name for name in self._index if name not in self.infos]
        if absent:
            more = f" and {len(absent) - 1} more" if absent[1:] else ""
            raise CheckpointFileError(
                str(self._index[absent[0]]),
                f"lacks {absent[0]!r}{more}, which the index says it holds; index and shards are "
                "of different saves: download both again",
            )
