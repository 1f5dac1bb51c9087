"""A GGUF model: metadata and tensor table of its file, or of all parts of a split one.

Source:
    ggml, docs/gguf.md; llama.cpp, tools/gguf-split (names and keys of the parts).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from ..errors import CheckpointFileError
from .gguf_parser import GGUFPart, GGUFTensor, broken, read_part, require_gguf
from .gguf_split import read_parts

__all__ = ["GGUFFile", "GGUFPart", "GGUFTensor", "require_gguf"]

T = TypeVar("T")


class GGUFFile:
    """The facts of one GGUF model, parsed once and shared by config, tokenizer and weights.

    Holds no mapping and no handle, so it pickles.

    Args:
        path: the file; of a split model, any of its parts.

    Attributes:
        path: the file; of a split model, the first part.
        parts: every file of the model.
        metadata: key to plain Python value; arrays are lists. Of the first part.
        tensors: name to place and type, in file order, part after part.

    Raises:
        CheckpointFileError: not a GGUF file, cut short, contradicting itself, or split with a part
            missing or of another model.
        MissingDependency: the ``gguf`` package is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Parse the file at path, and the other parts of a split model."""
        self.parts = read_parts(read_part(Path(path)))
        self.path, self.metadata = self.parts[0].path, self.parts[0].metadata
        self.tensors = {name: each for part in self.parts for name, each in part.tensors.items()}

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors, in file order."""
        return tuple(self.tensors)

    @property
    def architecture(self) -> str:
        """``general.architecture``, such as ``llama``."""
        return self.need("general.architecture", str)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of a key, or None where the file has no such key.

        Raises:
            CheckpointFileError: the value is not of that kind.
        """
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.broken(f"{key} is a {type(value).__name__}, expected {kind.__name__}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there.

        Raises:
            CheckpointFileError: it is not, or not of that kind.
        """
        value = self.get(key, kind)
        if value is None:
            raise self.broken(f"has no {key} in its metadata; convert the model again")
        return value

    def broken(self, problem: str) -> CheckpointFileError:
        """An error about this file, for the caller to raise."""
        return broken(self.path, problem)
