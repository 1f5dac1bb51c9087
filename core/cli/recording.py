"""Recording: what a trusted checkpoint computed, kept beside it as a small file.

``verify --record`` writes one where archzoo and transformers agree; ``verify --against`` compares
with it later, on any machine, without transformers. The file is safetensors: the prompt as ``ids``,
one tensor for each stage of the trace, and a JSON text among the metadata that holds the order of the
stages, who computed them, and fingerprints of the checkpoint's tensors. A digest over all of it
tells a damaged recording from a model that departs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..config import ModelConfig
from ..errors import CheckpointFileError, InputError
from .comparison import TOLERANCES
from .fingerprints import Fingerprints, digest
from .trace import LOGITS, Trace

_FORMAT, _VERSION = "archzoo_recording", "1"
_IDS = "ids"
_AGAIN = "write it again with archzoo verify PATH --record FILE"


@dataclass(frozen=True)
class Recording:
    """A prompt and what a model made of it.

    Args:
        ids: the prompt.
        trace: stage -> its values.
        made_by: who computed the trace.
        tensors: fingerprints of the checkpoint; empty when nobody took them.
    """

    ids: tuple[int, ...]
    trace: Trace
    made_by: str
    tensors: Fingerprints

    @property
    def dtype(self) -> torch.dtype:
        """Of the model that computed it."""
        return next(iter(self.trace.values())).dtype

    def check_fits(self, config: ModelConfig, file: object) -> None:
        """Refuse a recording of another model.

        Raises:
            InputError: layers, hidden size or vocabulary differ.
        """
        layers = sum(stage.startswith("layer ") for stage in self.trace)
        found = {"layers": layers, "hidden size": next(iter(self.trace.values())).shape[1]}
        wanted = {"layers": config.num_hidden_layers, "hidden size": config.hidden_size}
        if found != wanted:
            raise InputError(
                f"{file} records a model of {_sizes(found)}, the checkpoint has {_sizes(wanted)}; "
                "give the recording that was made of this model"
            )

    def write(self, file: Path) -> None:
        """Keep it.

        Raises:
            OSError: the file cannot be written.
        """
        facts = {"stages": list(self.trace), "made_by": self.made_by, "tensors": self.tensors}
        text = json.dumps(facts)
        tensors = {_IDS: torch.tensor(self.ids), **self.trace}
        tensors = {name: values.contiguous() for name, values in tensors.items()}
        metadata = {_FORMAT: _VERSION, "facts": text, "digest": _digest(text, tensors)}
        file.write_bytes(save(tensors, metadata))


def read_recording(file: Path) -> Recording:
    """The recording of a file, proved to be as it was written.

    Raises:
        CheckpointFileError: no recording, damaged, or not made by ``verify``.
    """
    try:
        with safe_open(file, "pt") as stored:
            metadata: dict[str, str] = stored.metadata() or {}
            tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}
    except (OSError, SafetensorError) as error:
        raise CheckpointFileError(
            str(file), f"cannot be read as a recording ({error}); {_AGAIN}"
        ) from error
    version = metadata.get(_FORMAT)
    if version != _VERSION:
        problem = "is no recording" if version is None else f"is a recording of version {version!r}"
        raise CheckpointFileError(str(file), f"{problem}, expected version {_VERSION}; {_AGAIN}")
    text = metadata.get("facts", "")
    if metadata.get("digest") != _digest(text, tensors):
        raise CheckpointFileError(
            str(file), f"holds other values than were written into it; fetch it again, or {_AGAIN}"
        )
    try:
        return _recording(json.loads(text), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointFileError(
            str(file), f"is a recording that contradicts itself ({error!r}); {_AGAIN}"
        ) from error


def _recording(facts: dict[str, Any], tensors: dict[str, Tensor]) -> Recording:
    ids = tensors.pop(_IDS)
    trace = {str(stage): tensors.pop(stage) for stage in facts["stages"]}
    if tensors or not trace:
        raise ValueError(f"tensors {sorted(tensors)} beside stages {sorted(trace)}")
    if ids.dtype != torch.int64 or ids.dim() != 1 or not len(ids):
        raise ValueError(f"{_IDS} of {ids.dtype} and shape {list(ids.shape)}")
    for stage, values in trace.items():
        rows = len(values) if stage == LOGITS else len(ids)
        if values.dim() != 2 or values.shape[0] != rows or values.dtype not in TOLERANCES:
            raise ValueError(f"{stage} of {values.dtype} and shape {list(values.shape)}")
    marks = {str(name): str(mark) for name, mark in facts["tensors"].items()}
    return Recording(tuple(ids.tolist()), trace, str(facts["made_by"]), marks)


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    """Over everything that a recording says."""
    whole = hashlib.sha256(text.encode())
    for name, values in sorted(tensors.items()):
        whole.update(f"{name} {values.dtype} {list(values.shape)} {digest(values)}".encode())
    return whole.hexdigest()


def _sizes(sizes: dict[str, int]) -> str:
    return " and ".join(f"{what} {size}" for what, size in sizes.items())
