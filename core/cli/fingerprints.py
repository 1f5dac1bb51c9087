"""Fingerprints of a checkpoint's tensors: which of them are no longer what they were.

A model that departs from a recording says where, not why. Names and digests of the tensors as they
were tell two exchanged tensors from a transposed or a changed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..runtime.checkpoint import Checkpoint
from .reference import named_tensors

Fingerprints = dict[str, str]
"""Hugging Face name -> digest of the tensor's values as they are stored."""


@dataclass(frozen=True)
class Change:
    """One tensor that is not what it was.

    Args:
        tensor: its Hugging Face name.
        status: ``swapped`` (holds what ``other`` held), ``transposed``, ``changed``, ``missing``
            or ``added``.
        other: whose values it holds.
    """

    tensor: str
    status: str
    other: str = ""

    def __str__(self) -> str:
        """For people."""
        what = f"{self.status}, it holds what {self.other} held" if self.other else self.status
        return f"{self.tensor}: {what}"


def digest(values: Tensor) -> str:
    """Digest of a tensor's bytes, row by row."""
    return hashlib.sha256(
        values.contiguous().reshape(-1).view(torch.uint8).numpy().data
    ).hexdigest()


def fingerprints(path: Path) -> Fingerprints:
    """Of every tensor of a checkpoint that a model reads; one tensor at a time."""
    with closing(Checkpoint(path)) as checkpoint:
        return {name: digest(values) for name, values in named_tensors(checkpoint)}


def changes(path: Path, recorded: Mapping[str, str]) -> tuple[Change, ...]:
    """What a checkpoint's tensors are that were others when they were recorded."""
    with closing(Checkpoint(path)) as checkpoint:
        return tuple(_changes(named_tensors(checkpoint), recorded))


def _changes(
    tensors: Iterator[tuple[str, Tensor]], recorded: Mapping[str, str]
) -> Iterator[Change]:
    held = {digest: name for name, digest in recorded.items()}
    absent = set(recorded)
    for name, values in tensors:
        absent.discard(name)
        found, before = digest(values), recorded.get(name)
        if found == before:
            continue
        if found in held:
            yield Change(name, "swapped", held[found])
        elif before is None:
            yield Change(name, "added")
        elif values.dim() == 2 and digest(values.T) == before:
            yield Change(name, "transposed")
        else:
            yield Change(name, "changed")
    yield from (Change(name, "missing") for name in sorted(absent))
