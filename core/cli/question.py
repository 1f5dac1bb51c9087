"""What ``why`` was asked: names, given as such or read from a checkpoint."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CheckpointFileError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[\w.-]+")
_FILES = (".json", ".gguf", ".safetensors")


class UsageError(Exception):
    """What the user wrote is neither a name nor a checkpoint."""


class Question(NamedTuple):
    """Names to decide on, and where they come from.

    Args:
        asked: what the user wrote.
        names: architectures, best first.
        file: the file that states them; empty for a name.
        model_type: what that file states beside them; empty when nothing.
        gguf: whether ``model_type`` is GGUF's word for the architecture.
    """

    asked: str
    names: tuple[str, ...]
    file: str = ""
    model_type: str = ""
    gguf: bool = False


def read_question(asked: str) -> Question:
    """What a name or a path asks. Of a checkpoint only the config or the header is read.

    Args:
        asked: an architecture; or a directory, config.json, .safetensors or .gguf file.

    Raises:
        UsageError: no such path, and nothing like a name.
        ConfigError, CheckpointFileError: a checkpoint that cannot be read.
    """
    is_path = any(mark in asked for mark in "/\\") or asked.lower().endswith(_FILES)
    if os.path.exists(asked):
        return _of_path(asked)
    if is_path:
        raise UsageError(
            f"no such path: {asked!r}; give a checkpoint directory, config.json or .gguf file on "
            "this disk, or the name of an architecture such as LlamaForCausalLM"
        )
    if not _NAME.fullmatch(asked):
        raise UsageError(
            f"{asked!r} is neither a path nor the name of an architecture; names are letters, "
            "digits, '_', '.' and '-', such as LlamaForCausalLM"
        )
    return Question(asked, (asked,))


def _of_path(asked: str) -> Question:
    from pathlib import Path  # names alone need none

    file = stating_file(Path(asked))
    if is_gguf(file):
        from .gguf_architecture import gguf_architecture  # only checkpoints of that kind need it

        names, word = gguf_architecture(str(file))
        return Question(asked, names, str(file), word, gguf=True)
    from ..config import architectures_of, read_config  # names alone need no config

    raw = read_config(file)
    model_type = raw.get("model_type")
    stated = model_type if isinstance(model_type, str) else ""
    return Question(asked, architectures_of(raw, str(file)), str(file), stated)


def stating_file(path: Path) -> Path:
    """The file that states the architectures, as ``load`` chooses it.

    Raises:
        CheckpointFileError: a directory of several GGUF files and no config.
    """
    if not path.is_dir():
        return path.with_name("config.json") if path.suffix.lower() == ".safetensors" else path
    config = path / "config.json"
    if config.exists():
        return config
    found = sorted(file for file in path.iterdir() if is_gguf(file))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise CheckpointFileError(str(path), f"holds several GGUF files; name one of {names}")
    return found[0] if found else config


def is_gguf(file: Path) -> bool:
    """Whether a file is one by its name."""
    return file.suffix.lower() == ".gguf"
