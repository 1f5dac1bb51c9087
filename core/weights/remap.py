"""NameMap: checkpoint names to parameter names and back, by rules over dotted components.

A name passes four phases::

    checkpoint name --renames--> --spellings--> canonical name --skips--> --stacking--> Target

*Experts* are stacked by rules of their own, which come before the others' (``#`` is their number).

*Renames* undo wrappers and other formats' names, phase after phase. *Spellings* give one name to
tensors that writers call differently. *Skips* drop tensors that no parameter wants, each by a
named rule. *Stacking* sends split tensors to their part of a stacked parameter; a checkpoint that
stores the stacked tensor passes untouched, shard_id None. Inside a phase no two rules may match one
name, so the order of rules never matters.

``bound`` fits a map to one checkpoint: the wrapper is settled for all its names at once, and
every name it stores comes back exactly from ``to_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from ..errors import WeightError
from ..parallel import ExpertShard, ShardId
from .nesting import Nesting, without, wrapper_note
from .outlines import Outlines
from .patterns import NUMBER, Captures, Pattern, PatternIndex, split


@dataclass(frozen=True)
class Rename:
    """Names that match ``pattern`` become ``replacement``; reversible.

    Args:
        pattern: over checkpoint names.
        replacement: has the same wildcards in the same order, but for ``#``.
        shard_id: part of the stacked parameter that ``replacement`` names; stacking rules only. Where
            the pattern has a ``#``, the part of the expert of that number.

    Raises:
        WeightError: the wildcards differ, so the rule could not be undone.
    """

    pattern: str
    replacement: str
    shard_id: ShardId = None

    def __post_init__(self) -> None:
        """Refuse rules that cannot be undone."""
        kept = tuple(each for each in self.source.wildcards if each != NUMBER)
        if kept != self.target.wildcards or len(self.source.wildcards) - len(kept) > 1:
            raise WeightError(
                f"rename {self.pattern!r} -> {self.replacement!r}: wildcards "
                f"{self.source.wildcards} and {self.target.wildcards} differ; a reversible rule "
                "keeps them, in order, but for one '#' that becomes part of the shard id"
            )

    @cached_property
    def source(self) -> Pattern:
        """The pattern, parsed."""
        return Pattern(self.pattern)

    @cached_property
    def target(self) -> Pattern:
        """The replacement, parsed."""
        return Pattern(self.replacement)

    @property
    def patterns(self) -> tuple[Pattern, Pattern]:
        """Both, parsed."""
        return self.source, self.target

    @cached_property
    def of_experts(self) -> bool:
        """Whether it takes an expert's number out of the name."""
        return NUMBER in self.source.parts

    def forward(self, captures: Captures) -> str:
        """The new name of a name that matches; an expert's number comes last."""
        number: Captures = ()
        if self.of_experts:
            at = self.source.wildcards.index(NUMBER)
            captures, number = (*captures[:at], *captures[at + 1 :]), captures[at : at + 1]
        return ".".join((*self.target.fill(captures), *chain(*number)))

    def place(self, name: str) -> Target:
        """Where a tensor goes, by the name that ``forward`` gave."""
        if not self.of_experts:
            return Target(name, self.shard_id)
        assert not isinstance(self.shard_id, ExpertShard)
        parameter, _, number = name.rpartition(".")
        return Target(parameter, ExpertShard(int(number), self.shard_id))

    def backward(self, captures: Captures, shard_id: ShardId) -> str:
        """The name that leads to a shard of a parameter whose name matches the replacement."""
        if isinstance(shard_id, ExpertShard):
            at = self.source.wildcards.index(NUMBER)
            captures = (*captures[:at], (str(shard_id.expert),), *captures[at:])
        return ".".join(self.source.fill(captures))


@dataclass(frozen=True)
class Skip:
    """Tensors that are left out on purpose.

    Args:
        rule: short name, shown with a count in the report.
        pattern: over canonical names.
        why: one phrase.
        unless_wanted: a model that has such a parameter takes the tensor; others leave it out.
    """

    rule: str
    pattern: str
    why: str
    unless_wanted: bool = False

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
    """A checkpoint tensor goes nowhere, by this rule and for this reason."""

    rule: str
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class NameMap:
    """Ordered phases of rules between checkpoint names and parameter names.

    Args:
        renames: phases, outermost wrapper first; without shard ids.
        skips: what is left out.
        stacking: split tensors of stacked parameters; each with a shard id.
        anywhere: components that are left out of names before the renames; ``bound`` fills it in.
        stored: name without them -> the one that a checkpoint has; ``bound`` fills it in.
        experts: tensors of single experts, each pattern with a ``#``; they come before ``stacking``.
        spellings: other names of a tensor; several may lead to one name.
        nesting: where the model's own names begin, for ``bound`` to find what is wrapped around
            them; None takes names as they are.
        spelled: canonical name -> the spelling a checkpoint uses; ``bound`` fills it in.
        notes: what ``bound`` found, for the report.

    Raises:
        WeightError: rules of one phase overlap (forwards or backwards), a spelling leads to
            another one, or a shard id stands in the wrong phase.
    """

    renames: tuple[tuple[Rename, ...], ...] = ()
    skips: tuple[Skip, ...] = ()
    stacking: tuple[Rename, ...] = ()
    spellings: tuple[Rename, ...] = ()
    nesting: Nesting | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    experts: tuple[Rename, ...] = ()
    anywhere: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every phase now, not at the first name."""
        for rule in self._renaming:
            if rule.shard_id is not None:
                raise WeightError(f"{rule} has a shard id; put it into the stacking phase")
        for rule in self.stacking:
            if rule.shard_id is None:
                raise WeightError(f"{rule} has no shard id; put it into a rename phase")
        plain = [rule for rule in (*self._renaming, *self.stacking) if rule.of_experts]
        for rule in (*plain, *(rule for rule in self.experts if not rule.of_experts)):
            raise WeightError(f"{rule}: rules of experts have a '#' in their pattern, no others do")
        _ = (self._forward, self._backward, self._skip, self._stack, self._unstack)
        _ = (self._spell, self._leftover, self._expert)
        _refuse_chains(self.spellings)

    def bound(self, names: Collection[str]) -> NameMap:
        """This map for one checkpoint, whose names are all given.

        Raises:
            WeightError: names that are wrapped in different ways.
        """
        fitted = self
        if self.nesting is not None:
            stored, fitted = self.nesting.unwrap(names), replace(self, nesting=None)
            if stored:
                notes = (*self.notes, wrapper_note(self.nesting, stored.values()))
                anywhere = self.nesting.anywhere
                fitted = replace(fitted, anywhere=anywhere, stored=stored, notes=notes)
            wrapping = self.nesting.recognise(without(name, fitted.anywhere) for name in names)
            phase = tuple(Rename(*pair) for pair in wrapping.renames())
            if phase:
                notes = (*fitted.notes, str(wrapping))
                fitted = replace(fitted, renames=(phase, *self.renames), notes=notes)
        spelled: dict[str, str] = {}
        for name in names:
            respelled, canonical = fitted._canonical.answer(name)
            if respelled:
                spelled[canonical] = fitted._unwrapped(name)
        return replace(fitted, spelled=spelled)

    def rename(self, name: str) -> str:
        """The canonical name: wrappers and foreign spellings undone."""
        return self._canonical.answer(name)[1]

    def place(self, canonical: str) -> Target | Skipped:
        """Where a tensor of that canonical name goes."""
        found, text = self._places.answer(canonical)
        if isinstance(found, Skipped):
            return found
        return Target(text) if found is None else found.place(text)

    def parts(self, parameter: str, experts: int = 0) -> dict[ShardId, str]:
        """Canonical names of the tensors a parameter may come from, by their part of it.

        Itself alone, under None, when nothing is stacked in it.

        Args:
            parameter: its name.
            experts: how many of them the parameter stacks; 0 where it is no expert's.
        """
        stacked: dict[ShardId, str] = {}
        for (of_experts, part), index in self._unstack.items():
            hit = index.find(split(parameter))
            if hit is None or of_experts != bool(experts):
                continue
            rule, captures = hit
            assert not isinstance(part, ExpertShard)
            every: list[ShardId] = [ExpertShard(at, part) for at in range(experts)] or [part]
            stacked |= {shard: rule.backward(captures, shard) for shard in every}
        return stacked or {None: parameter}

    def leftover(self, canonical: str) -> Skipped | None:
        """The rule that leaves out a tensor which no parameter of the model wants, or None."""
        found = self._leftover.find(split(canonical))
        return None if found is None else Skipped(found[0].rule, found[0].why)

    def to_parameter(self, name: str) -> Target | Skipped:
        """Where the checkpoint tensor of that name goes."""
        return self.place(self.rename(name))

    def to_checkpoint(self, parameter: str, shard_id: ShardId = None) -> str:
        """The checkpoint name that leads to a parameter, or to one part of it.

        Raises:
            WeightError: no name leads there.
        """
        name = self._unstacked(parameter, shard_id)
        name = self.spelled.get(name, name)
        for phase in reversed(self._backward):
            found = phase.find(split(name))
            if found is not None:
                name = ".".join(found[0].source.fill(found[1]))
        name = self.stored.get(name, name)
        reached = self.to_parameter(name)
        if reached != Target(parameter, shard_id):
            raise WeightError(
                f"no checkpoint name leads to {describe(parameter, shard_id)}: "
                f"{name!r} gives {reached}; correct the name rules"
            )
        return name

    def _name(self, name: str) -> tuple[bool, str]:
        """The canonical name, and whether the stored one is spelled otherwise."""
        unwrapped = self._unwrapped(name)
        canonical = _renamed(self._spell, unwrapped)
        return canonical != unwrapped, canonical

    def _place(self, canonical: str) -> tuple[Rename | Skipped | None, str]:
        """What decides where a tensor goes, and the name that it leads to."""
        parts = split(canonical)
        skip = self._skip.find(parts)
        if skip is not None:
            return Skipped(skip[0].rule, skip[0].why), canonical
        found = self._expert.find(parts) or self._stack.find(parts)
        return (None, canonical) if found is None else (found[0], found[0].forward(found[1]))

    def _unwrapped(self, name: str) -> str:
        """The name after the renames, spelled as stored."""
        name = without(name, self.anywhere) if self.anywhere else name
        for phase in self._forward:
            name = _renamed(phase, name)
        return name

    def _unstacked(self, parameter: str, shard_id: ShardId) -> str:
        if shard_id is None:
            return parameter
        index = self._unstack.get(_kind(shard_id))
        found = None if index is None else index.find(split(parameter))
        if found is None:
            raise WeightError(
                f"no stacking rule leads to {describe(parameter, shard_id)}; "
                f"declare a Rename with shard_id={shard_id!r}"
            )
        return found[0].backward(found[1], shard_id)

    @property
    def _renaming(self) -> tuple[Rename, ...]:
        """Rules that change names only."""
        return tuple(rule for phase in (*self.renames, self.spellings) for rule in phase)

    @cached_property
    def _canonical(self) -> Outlines[bool]:
        rules = (rule.patterns for rule in self._renaming)
        return Outlines(self._name, chain.from_iterable(rules))

    @cached_property
    def _places(self) -> Outlines[Rename | Skipped | None]:
        rules = (rule.patterns for rule in (*self.experts, *self.stacking))
        skips = (rule.source for rule in self.skips)
        return Outlines(self._place, chain(skips, chain.from_iterable(rules)))

    @cached_property
    def _forward(self) -> tuple[PatternIndex[Rename], ...]:
        return tuple(_by_source(phase, "renames") for phase in self.renames)

    @cached_property
    def _backward(self) -> tuple[PatternIndex[Rename], ...]:
        return tuple(_by_target(phase, "renames, backwards") for phase in self.renames)

    @cached_property
    def _spell(self) -> PatternIndex[Rename]:
        return _by_source(self.spellings, "spellings")

    @cached_property
    def _skip(self) -> PatternIndex[Skip]:
        rules = (rule for rule in self.skips if not rule.unless_wanted)
        return PatternIndex(((rule.source, rule) for rule in rules), "skips")

    @cached_property
    def _leftover(self) -> PatternIndex[Skip]:
        rules = (rule for rule in self.skips if rule.unless_wanted)
        return PatternIndex(((rule.source, rule) for rule in rules), "skips unless wanted")

    @cached_property
    def _stack(self) -> PatternIndex[Rename]:
        return _by_source(self.stacking, "stacking")

    @cached_property
    def _expert(self) -> PatternIndex[Rename]:
        return _by_source(self.experts, "experts")

    @cached_property
    def _unstack(self) -> dict[_Kind, PatternIndex[Rename]]:
        groups: dict[_Kind, list[Rename]] = {}
        for rule in (*self.experts, *self.stacking):
            groups.setdefault((rule.of_experts, rule.shard_id), []).append(rule)
        return {
            kind: _by_target(rules, f"stacking, backwards, shard {kind[1]!r}")
            for kind, rules in groups.items()
        }


def describe(parameter: str, shard_id: ShardId) -> str:
    """A parameter, or a part of it, for messages."""
    if isinstance(shard_id, ExpertShard):
        return f"{shard_id} of {parameter}"
    return parameter if shard_id is None else f"shard {shard_id!r} of {parameter}"


_Kind = tuple[bool, ShardId]
"""Shards that one rule leads to: whether they are experts', and which part."""


def _kind(shard_id: ShardId) -> _Kind:
    if isinstance(shard_id, ExpertShard):
        return True, shard_id.part
    return False, shard_id


def _by_source(rules: Sequence[Rename], what: str) -> PatternIndex[Rename]:
    return PatternIndex(((rule.source, rule) for rule in rules), what)


def _by_target(rules: Sequence[Rename], what: str) -> PatternIndex[Rename]:
    return PatternIndex(((rule.target, rule) for rule in rules), what)


def _renamed(phase: PatternIndex[Rename], name: str) -> str:
    """The name after one phase."""
    found = phase.find(split(name))
    return name if found is None else ".".join(found[0].target.fill(found[1]))


def _refuse_chains(spellings: Sequence[Rename]) -> None:
    """Refuse a spelling whose result is a spelling too: it would be undone by halves."""
    for one in spellings:
        for two in spellings:
            if one.target.overlaps(two.source):
                raise WeightError(
                    f"spellings: {one.pattern!r} leads to {one.replacement!r}, which "
                    f"{two.pattern!r} renames again; lead both to one name"
                )
