"""Patterns over dotted names: whole components, never substrings.

A component of a pattern is a literal, ``*`` (exactly one component), ``#`` (exactly one, a number
as Python writes it) or ``**`` (any number of components, also none; at most once in a pattern, so
that a match is unique)::

    **.q_proj.*      matches  model.layers.0.self_attn.q_proj.weight   and  q_proj.bias
                     but not  model.layers.0.mlp.qq_proj.weight
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from ..errors import WeightError

Parts = tuple[str, ...]
Captures = tuple[Parts, ...]
"""What each wildcard of a pattern stands for, in pattern order."""

ONE, MANY, NUMBER = "*", "**", "#"
WILDCARDS = (ONE, MANY, NUMBER)


def split(name: str) -> Parts:
    """The components of a dotted name."""
    return tuple(name.split("."))


@dataclass(frozen=True)
class Pattern:
    """A dotted name with wildcards.

    Raises:
        WeightError: an empty component, a wildcard glued to other characters, or two ``**``.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse what would not be a pattern over whole components."""
        for part in self.parts:
            if not part or (set("*#") & set(part) and part not in WILDCARDS):
                raise WeightError(
                    f"pattern {self.text!r}: component {part!r} must be a whole name, '*', '#' or '**'"
                )
        if self.parts.count(MANY) > 1:
            raise WeightError(
                f"pattern {self.text!r} has more than one '**'; matches must be unique"
            )

    @cached_property
    def parts(self) -> Parts:
        """Components, wildcards included."""
        return split(self.text)

    @cached_property
    def wildcards(self) -> Parts:
        """The wildcards in order."""
        return tuple(part for part in self.parts if part in WILDCARDS)

    @cached_property
    def key(self) -> str | None:
        """The longest literal component: a name without it cannot match."""
        literals = [part for part in self.parts if part not in WILDCARDS]
        return max(literals, key=len, default=None)

    def match(self, name: Parts) -> Captures | None:
        """What the wildcards stand for, or None when the name does not match."""
        parts = self.parts
        if MANY not in parts:
            return _align(parts, name) if len(parts) == len(name) else None
        at = parts.index(MANY)
        end = len(name) - (len(parts) - at - 1)
        if end < at:
            return None
        head, tail = _align(parts[:at], name[:at]), _align(parts[at + 1 :], name[end:])
        if head is None or tail is None:
            return None
        return (*head, name[at:end], *tail)

    def fill(self, captures: Captures) -> Parts:
        """The name whose wildcards stand for the captures."""
        values = iter(captures)
        out: list[str] = []
        for part in self.parts:
            out.extend(next(values) if part in WILDCARDS else (part,))
        return tuple(out)

    def overlaps(self, other: Pattern) -> bool:
        """Whether some name matches both."""
        return _overlap(self.parts, other.parts)


def _align(pattern: Parts, name: Parts) -> Captures | None:
    """Captures of a pattern without ``**`` against a name of equal length."""
    captures: list[Parts] = []
    for want, have in zip(pattern, name, strict=True):
        if want == ONE or (want == NUMBER and is_number(have)):
            captures.append((have,))
        elif want != have:
            return None
    return tuple(captures)


def _overlap(a: Parts, b: Parts) -> bool:
    if not a and not b:
        return True
    if a and a[0] == MANY:
        return _overlap(a[1:], b) or bool(b) and _overlap(a, b[1:])
    if b and b[0] == MANY:
        return _overlap(b, a)
    if not a or not b:
        return False
    return _meet(a[0], b[0]) and _overlap(a[1:], b[1:])


def _meet(a: str, b: str) -> bool:
    """Whether one component can be both."""
    if a == b or ONE in (a, b):
        return True
    return (a == NUMBER and is_number(b)) or (b == NUMBER and is_number(a))


def is_number(part: str) -> bool:
    """Whether a component is a number from 0, without leading zeros."""
    return part.isascii() and part.isdecimal() and (part == "0" or part[0] != "0")


Rule = TypeVar("Rule")


class PatternIndex(Generic[Rule]):
    """Finds the one rule whose pattern matches a name, without trying them all.

    Args:
        entries: patterns that do not overlap, each with its rule.
        what: the phase, for the message.

    Raises:
        WeightError: two patterns match a common name.
    """

    def __init__(self, entries: Iterable[tuple[Pattern, Rule]], what: str) -> None:
        """Check and index the patterns."""
        self._by_key: dict[str | None, list[tuple[Pattern, Rule]]] = {}
        seen: list[Pattern] = []
        for pattern, rule in entries:
            for earlier in seen:
                if earlier.overlaps(pattern):
                    raise WeightError(
                        f"{what}: {earlier.text!r} and {pattern.text!r} match common names; "
                        "make them disjoint or put them into separate phases"
                    )
            seen.append(pattern)
            self._by_key.setdefault(pattern.key, []).append((pattern, rule))

    def find(self, name: Parts) -> tuple[Rule, Captures] | None:
        """The rule and what its wildcards stand for, or None."""
        for key in (*name, None):
            for pattern, rule in self._by_key.get(key, ()):
                captures = pattern.match(name)
                if captures is not None:
                    return rule, captures
        return None
