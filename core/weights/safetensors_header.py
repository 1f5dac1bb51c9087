"""The header of a safetensors file, checked for what the library lets pass.

::

    length u64 (little-endian) | JSON of that length | data

``safetensors`` refuses lengths, offsets and shapes that do not fit, but takes the last of two
tensors of one name.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import CheckpointFileError
from .file_checks import once

_LENGTH_BYTES = 8


def refuse_doubled_names(path: Path) -> None:
    """Refuse a header that states a tensor twice.

    Args:
        path: a file that ``safetensors`` has opened, so that length and JSON are sound.

    Raises:
        CheckpointFileError: it does.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        text = stream.read(length)
    try:
        json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(
            str(path),
            f"has a header that contradicts itself ({error}); get the checkpoint from its author",
        ) from error
