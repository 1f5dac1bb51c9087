"""Mutations that no header shows: tensors of one shape exchanged, square ones transposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

Tensors = dict[str, Tensor]
AROUND = {"model.embed_tokens": "embedding", "model.norm": "final norm", "lm_head": "logits"}
"""Tensors beside the layers, and the stage that shows them."""


@dataclass(frozen=True)
class Mutation:
    """Tensors in places that are not theirs.

    Args:
        status: ``swapped`` or ``transposed``.
        names: the tensors it touches.
    """

    status: str
    names: tuple[str, ...]

    def of(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """The mutated checkpoint."""
        values = [tensors[name] for name in reversed(self.names)]
        if self.status == "transposed":
            values = [each.T.contiguous() for each in values]
        return {**tensors, **dict(zip(self.names, values, strict=True))}

    @property
    def stage(self) -> str:
        """The first that computes with one of them."""
        return min((stage_of(name) for name in self.names), key=_order)


def stage_of(name: str) -> str:
    """Which stage of a trace computes with a tensor."""
    around = AROUND.get(name.removesuffix(".weight"))
    return around if around is not None else f"layer {name.split('.')[2]}"


def _order(stage: str) -> tuple[int, int]:
    if stage.startswith("layer "):
        return (1, int(stage.removeprefix("layer ")))
    return (("embedding", "", "final norm", "logits").index(stage), 0)


def every_mutation(tensors: Mapping[str, Tensor]) -> Iterator[Mutation]:
    """All pairs of one shape, and all square matrices."""
    for one, two in combinations(tensors, 2):
        if tensors[one].shape == tensors[two].shape:
            yield Mutation("swapped", (one, two))
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
            yield Mutation("transposed", (name,))
