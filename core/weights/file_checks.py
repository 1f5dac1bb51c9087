"""What every kind of checkpoint file is checked for: what it looks like, and fit names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..config.files import saved_instead
from ..errors import CheckpointFileError

NOT_A_FILE = "is not a file; give a safetensors file or a checkpoint directory"
LONGEST_NAME = 1024
"""Characters of a tensor name. Real ones have up to about 120."""
MOST_DIMS = 16
"""Dimensions of a tensor. Real ones have up to 5."""


def mistaken_for(path: Path) -> str | None:
    """What was saved in a file's place, and what to do; None when that does not show."""
    if not os.path.isfile(path):
        return NOT_A_FILE
    try:
        with path.open("rb") as stream:
            head = stream.read(512)
    except OSError as error:
        return unreadable(error)
    if not head:
        return "is empty (0 bytes); the download did not finish: fetch it again"
    if found := saved_instead(head):
        return found
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "is a PyTorch pickle with a safetensors name; convert it"
    if head.startswith(b"GGUF"):
        return "is a GGUF file with a safetensors name; rename it to .gguf"
    return None


def unreadable(error: OSError) -> str:
    """What is wrong with a file or directory that the system does not let us read."""
    return f"cannot be read ({error.strerror}); check its permissions and its disk"


def read_json(path: Path, most: int, what: str) -> Any:
    """What a JSON file states.

    Args:
        path: of the file.
        most: bytes of the largest that is read.
        what: it is, for the message.

    Raises:
        CheckpointFileError: it is larger, cannot be read, is no JSON, or states a key twice.
    """
    try:
        if (size := path.stat().st_size) > most:
            raise ValueError(f"{size} bytes, at most {most} are read")
        return json.loads(path.read_bytes(), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as error:
        problem = mistaken_for(path) or f"is not a readable {what} ({error})"
        raise CheckpointFileError(str(path), problem) from error


def check_tensor(path: Path, name: str, dims: int) -> None:
    """Refuse a tensor that would flood or deceive a reader of messages.

    Args:
        path: its file.
        name: as stored.
        dims: how many dimensions it has.

    Raises:
        CheckpointFileError: control characters or lone surrogates in the name, a name of more
            than 1024 characters, or more than 16 dimensions.
    """
    if len(name) <= LONGEST_NAME and name.isprintable() and dims <= MOST_DIMS:
        return
    raise CheckpointFileError(
        str(path),
        f"names a tensor {ascii(name[:80])} ({len(name)} characters, {dims} dimensions); expected "
        f"printable text of up to {LONGEST_NAME} characters and up to {MOST_DIMS} dimensions: no "
        "trainer writes such a tensor, get the checkpoint from its author",
    )


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys come once each, for ``object_pairs_hook``.

    Raises:
        ValueError: one comes twice.
    """
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"key {ascii(key[:80])} comes twice")
        out[key] = value
    return out
