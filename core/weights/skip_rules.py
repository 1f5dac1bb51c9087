"""The loader's own skip arguments, each a named rule over whole components."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..errors import WeightError
from .patterns import Parts, split

Kind = Literal["skip_prefixes", "skip_substrs", "ignore_unexpected_suffixes"]


@dataclass(frozen=True)
class ArgumentRule:
    """One entry of ``skip_prefixes``, ``skip_substrs`` or ``ignore_unexpected_suffixes``."""

    kind: Kind
    text: str
    parts: Parts

    @property
    def rule(self) -> str:
        """Its name in the report."""
        return f"{self.kind} {self.text!r}"

    @property
    def why(self) -> str:
        """Its reason in the report."""
        return f"the caller's {self.kind}"

    def matches(self, name: Parts) -> bool:
        """Whether a name starts with, contains or ends in the components."""
        size = len(self.parts)
        match self.kind:
            case "skip_prefixes":
                return name[:size] == self.parts
            case "ignore_unexpected_suffixes":
                return name[-size:] == self.parts
        return any(name[at : at + size] == self.parts for at in range(len(name) - size + 1))


def argument_rules(kind: Kind, texts: Iterable[str]) -> tuple[ArgumentRule, ...]:
    """The rules of one argument. A dot at either end, as the field writes them, is dropped.

    Raises:
        WeightError: a single string instead of a list, or an entry without components.
    """
    if isinstance(texts, str):
        raise WeightError(f"{kind}={texts!r} must be a list of strings; write [{texts!r}]")
    rules: list[ArgumentRule] = []
    for text in texts:
        parts = split(text.strip("."))
        if "" in parts:
            raise WeightError(
                f"{kind}: {text!r} has an empty component; give whole dotted components"
            )
        rules.append(ArgumentRule(kind, text, parts))
    return tuple(rules)
