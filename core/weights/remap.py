"""NameMap: checkpoint names to parameter names and back, by rules over dotted components.

A name passes three phases::

    checkpoint name --renames--> canonical name --skips--> --stacking--> (parameter, shard_id)

*Renames* undo wrappers and other formats' spellings, phase after phase. *Skips* drop tensors
that no parameter wants, each by a named rule. *Stacking* sends split tensors to their part of a
stacked parameter; a checkpoint that stores the stacked tensor passes untouched, shard_id None.
Inside a phase no two rules may match one name, so the order of rules never matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import WeightError
from ..parallel import ShardId
from .patterns import Pattern, PatternIndex, split


@dataclass(frozen=True)
class Rename:
    """Names that match ``pattern`` become ``replacement``; reversible.

    Args:
        pattern: over checkpoint names.
        replacement: has the same wildcards in the same order.
        shard_id: part of the stacked parameter that ``replacement`` names; stacking rules only.

    Raises:
        WeightError: the wildcards differ, so the rule could not be undone.
    """

    pattern: str
    replacement: str
    shard_id: ShardId = None

    def __post_init__(self) -> None:
        """Refuse rules that cannot be undone."""
        if self.source.wildcards != self.target.wildcards:
            raise WeightError(
                f"rename {self.pattern!r} -> {self.replacement!r}: wildcards "
                f"{self.source.wildcards} and {self.target.wildcards} differ; "
                "a reversible rule keeps them, in order"
            )

    @cached_property
    def source(self) -> Pattern:
        """The pattern, parsed."""
        return Pattern(self.pattern)

    @cached_property
    def target(self) -> Pattern:
        """The replacement, parsed."""
        return Pattern(self.replacement)


@dataclass(frozen=True)
class Skip:
    """Tensors that are left out on purpose.

    Args:
        rule: short name, shown with a count in the report.
        pattern: over canonical names.
        why: one phrase.
    """

    rule: str
    pattern: str
    why: str

    @cached_property
    def source(self) -> Pattern:
        """The pattern, parsed."""
        return Pattern(self.pattern)


@dataclass(frozen=True)
class Target:
    """Where a checkpoint tensor goes: a parameter, and which part of it."""

    parameter: str
    shard_id: ShardId = None


@dataclass(frozen=True)
class Skipped:
    """A checkpoint tensor goes nowhere, by this rule."""

    rule: str


@dataclass(frozen=True)
class NameMap:
    """Ordered phases of rules between checkpoint names and parameter names.

    Args:
        renames: phases, outermost wrapper first; without shard ids.
        skips: what is left out.
        stacking: split tensors of stacked parameters; each with a shard id.

    Raises:
        WeightError: rules of one phase overlap (forwards or backwards), or a shard id stands in
            the wrong phase.
    """

    renames: tuple[tuple[Rename, ...], ...] = ()
    skips: tuple[Skip, ...] = ()
    stacking: tuple[Rename, ...] = ()

    def __post_init__(self) -> None:
        """Check every phase now, not at the first name."""
        for rule in (rule for phase in self.renames for rule in phase):
            if rule.shard_id is not None:
                raise WeightError(f"{rule} has a shard id; put it into the stacking phase")
        for rule in self.stacking:
            if rule.shard_id is None:
                raise WeightError(f"{rule} has no shard id; put it into a rename phase")
        _ = (self._forward, self._backward, self._skip, self._stack, self._unstack)

    def rename(self, name: str) -> str:
        """The canonical name: wrappers and foreign spellings undone."""
        for phase in self._forward:
            found = phase.find(split(name))
            if found is not None:
                name = ".".join(found[0].target.fill(found[1]))
        return name

    def place(self, canonical: str) -> Target | Skipped:
        """Where a tensor of that canonical name goes."""
        parts = split(canonical)
        skip = self._skip.find(parts)
        if skip is not None:
            return Skipped(skip[0].rule)
        found = self._stack.find(parts)
        if found is None:
            return Target(canonical)
        rule, captures = found
        return Target(".".join(rule.target.fill(captures)), rule.shard_id)

    def to_parameter(self, name: str) -> Target | Skipped:
        """Where the checkpoint tensor of that name goes."""
        return self.place(self.rename(name))

    def to_checkpoint(self, parameter: str, shard_id: ShardId = None) -> str:
        """The checkpoint name that leads to a parameter, or to one part of it.

        Raises:
            WeightError: no name leads there.
        """
        name = self._unstacked(parameter, shard_id)
        for phase in reversed(self._backward):
            found = phase.find(split(name))
            if found is not None:
                name = ".".join(found[0].source.fill(found[1]))
        reached = self.to_parameter(name)
        if reached != Target(parameter, shard_id):
            raise WeightError(
                f"no checkpoint name leads to {describe(parameter, shard_id)}: "
                f"{name!r} gives {reached}; correct the name rules"
            )
        return name

    def _unstacked(self, parameter: str, shard_id: ShardId) -> str:
        if shard_id is None:
            return parameter
        index = self._unstack.get(shard_id)
        found = None if index is None else index.find(split(parameter))
        if found is None:
            raise WeightError(
                f"no stacking rule leads to {describe(parameter, shard_id)}; "
                f"declare a Rename with shard_id={shard_id!r}"
            )
        return ".".join(found[0].source.fill(found[1]))

    @cached_property
    def _forward(self) -> tuple[PatternIndex[Rename], ...]:
        return tuple(_by_source(phase, "renames") for phase in self.renames)

    @cached_property
    def _backward(self) -> tuple[PatternIndex[Rename], ...]:
        return tuple(_by_target(phase, "renames, backwards") for phase in self.renames)

    @cached_property
    def _skip(self) -> PatternIndex[Skip]:
        return PatternIndex(((rule.source, rule) for rule in self.skips), "skips")

    @cached_property
    def _stack(self) -> PatternIndex[Rename]:
        return _by_source(self.stacking, "stacking")

    @cached_property
    def _unstack(self) -> dict[ShardId, PatternIndex[Rename]]:
        groups: dict[ShardId, list[Rename]] = {}
        for rule in self.stacking:
            groups.setdefault(rule.shard_id, []).append(rule)
        return {
            shard: _by_target(rules, f"stacking, backwards, shard {shard!r}")
            for shard, rules in groups.items()
        }


def describe(parameter: str, shard_id: ShardId) -> str:
    """A parameter, or a part of it, for messages."""
    return parameter if shard_id is None else f"shard {shard_id!r} of {parameter}"


def _by_source(rules: Sequence[Rename], what: str) -> PatternIndex[Rename]:
    return PatternIndex(((rule.source, rule) for rule in rules), what)


def _by_target(rules: Sequence[Rename], what: str) -> PatternIndex[Rename]:
    return PatternIndex(((rule.target, rule) for rule in rules), what)


STANDARD_QKV_MAPPING = (
    Rename("**.q_proj.*", "**.qkv_proj.*", "q"),
    Rename("**.k_proj.*", "**.qkv_proj.*", "k"),
    Rename("**.v_proj.*", "**.qkv_proj.*", "v"),
)
"""Split q, k, v projections to ``qkv_proj``; a stored ``qkv_proj`` passes as it is."""

STANDARD_GATE_UP_MAPPING = (
    Rename("**.gate_proj.*", "**.gate_up_proj.*", 0),
    Rename("**.up_proj.*", "**.gate_up_proj.*", 1),
)
"""Split gate and up projections to ``gate_up_proj``; a stored ``gate_up_proj`` passes as it is."""

STANDARD_SKIPS = (
    Skip("rotary inv_freq", "**.rotary_emb.inv_freq", "computed from the config"),
    Skip("rotary cos_cached", "**.rotary_emb.cos_cached", "computed from the config"),
    Skip("rotary sin_cached", "**.rotary_emb.sin_cached", "computed from the config"),
    Skip("attention mask buffer", "**.attn.bias", "a stored causal mask"),
    Skip("attention masked_bias", "**.attn.masked_bias", "a stored mask value"),
)
"""Buffers that old checkpoints store and no module here wants."""
