"""Routes: which parameter every checkpoint tensor is for, by names alone; the same on every rank.

Ranks differ in which parameters they hold and which slices they take, never in what a name means.
So names are read once, and each rank's plan starts from the groups they make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..errors import WeightError
from ..parallel import ShardId
from .patterns import split
from .remap import NameMap, Skipped
from .skip_rules import ArgumentRule
from .source import TensorInfo

Form = tuple[tuple[ShardId, tuple[int, ...], torch.dtype], ...]
"""Part, shape and dtype of every tensor of a group: all that decides how it fills a parameter."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A tensor that wants to fill a parameter, or a part of it.

    Args:
        tensor: what the header says of it.
        shard_id: the part; None for the whole.
        canonical: its name after renames.
        at: its place in storage order.
    """

    tensor: TensorInfo
    shard_id: ShardId
    canonical: str
    at: int


@dataclass(frozen=True)
class ClaimGroup:
    """All tensors that want to fill one parameter.

    Args:
        parameter: as the name rules call it.
        claims: in storage order.
        form: what decides how the tensors fill a parameter.
    """

    parameter: str
    claims: tuple[Claim, ...]
    form: Form = field(compare=False)

    @staticmethod
    def of(parameter: str, claims: Sequence[Claim], forms: dict[Form, Form]) -> ClaimGroup:
        """The group of some claims; equal forms of several groups are one object."""
        form = tuple((claim.shard_id, claim.tensor.shape, claim.tensor.dtype) for claim in claims)
        return ClaimGroup(parameter, tuple(claims), forms.setdefault(form, form))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the tensors."""
        return tuple(claim.tensor.name for claim in self.claims)


@dataclass(frozen=True)
class SkippedTensor:
    """A tensor that a rule leaves out, whatever the model holds."""

    name: str
    rule: str
    why: str


@dataclass(frozen=True)
class Routes:
    """A checkpoint's tensors by the parameter they are for.

    Args:
        names: the name rules as this checkpoint uses them.
        skipped: what is left out, in storage order.
        groups: by parameter, in storage order of their first tensors.
    """

    names: NameMap
    skipped: tuple[SkippedTensor, ...]
    groups: Mapping[str, ClaimGroup]


def route(
    infos: Mapping[str, TensorInfo], names: NameMap, skips: Iterable[ArgumentRule] = ()
) -> Routes:
    """Send every tensor where its name leads.

    Args:
        infos: the checkpoint's tensors, in storage order.
        names: name rules of the model's class.
        skips: of the loader's arguments, those that leave out whatever they match.

    Raises:
        WeightError: names that are wrapped in different ways, or of adapters that are not merged.
    """
    _refuse_adapters(infos)
    names, rules = names.bound(infos), tuple(skips)
    skipped: list[SkippedTensor] = []
    claims: dict[str, list[Claim]] = {}
    for at, info in enumerate(infos.values()):
        canonical = names.rename(info.name)
        placed = names.place(canonical)
        argument = next((rule for rule in rules if rule.matches(split(canonical))), None)
        if argument is not None:
            skipped.append(SkippedTensor(info.name, argument.rule, argument.why))
        elif isinstance(placed, Skipped):
            skipped.append(SkippedTensor(info.name, placed.rule, placed.why))
        else:
            claim = Claim(info, placed.shard_id, canonical, at)
            claims.setdefault(placed.parameter, []).append(claim)
    forms: dict[Form, Form] = {}
    groups = {name: ClaimGroup.of(name, found, forms) for name, found in claims.items()}
    return Routes(names, tuple(skipped), groups)


_ADAPTER_PARTS = frozenset(
    "base_layer modules_to_save lora_A lora_B lora_embedding_A lora_embedding_B "
    "lora_magnitude_vector ia3_l vera_lambda_b vera_lambda_d".split()
)
"""Components of names that PEFT gives to what it adds, and to what it adds to."""


def _refuse_adapters(names: Iterable[str]) -> None:
    """Refuse the state of a model whose adapters were saved apart from its weights."""
    for name in names:
        if not _ADAPTER_PARTS.isdisjoint(split(name)):
            raise WeightError(
                f"{name} is part of a PEFT adapter that is not merged into the weights; merge it "
                "(merge_and_unload()) and save the model again"
            )
