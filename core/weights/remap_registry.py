"""RemapRegistry: which name rules belong to which architecture class and checkpoint format."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import WeightError
from .nesting import Nesting
from .remap import NameMap, Rename, Skip

FORMATS = ("hf", "gguf")
"""Formats that name tensors differently: Hugging Face's names, GGUF's names."""


@dataclass(frozen=True)
class NameRules:
    """The rules one class adds for one format.

    Args:
        renames: one phase; runs before the phases of the base classes.
        skips: joined with those of the base classes.
        stacking: joined with those of the base classes.
        inherit: False stops here: no rules of base classes.
        spellings: joined with those of the base classes.
        nesting: replaces that of the base classes; for ``hf`` names.
        experts: joined with those of the base classes.
    """

    renames: tuple[Rename, ...] = ()
    skips: tuple[Skip, ...] = ()
    stacking: tuple[Rename, ...] = ()
    inherit: bool = True
    spellings: tuple[Rename, ...] = ()
    nesting: Nesting | None = None
    experts: tuple[Rename, ...] = ()


class RemapRegistry:
    """Name rules by (class, format); a class inherits along its MRO.

    Rules of a format other than ``hf`` lead to Hugging Face names; the ``hf`` rules follow.
    """

    def __init__(self) -> None:
        """An empty registry."""
        self._rules: dict[tuple[type, str], NameRules] = {}

    def register(self, cls: type, fmt: str, rules: NameRules) -> None:
        """Declare a class's rules for a format. Declaring equal rules again changes nothing.

        Raises:
            WeightError: unknown format, rules that overlap, or other rules declared before.
        """
        self._check(fmt)
        NameMap(
            (rules.renames,), rules.skips, rules.stacking, rules.spellings, experts=rules.experts
        )
        known = self._rules.setdefault((cls, fmt), rules)
        if known != rules:
            raise WeightError(
                f"{cls.__qualname__} has {fmt} name rules already, and they differ; "
                "declare them once, or subclass"
            )

    def for_class(self, cls: type, fmt: str) -> NameMap:
        """All rules that hold for a class and a format.

        Raises:
            WeightError: unknown format, a foreign format without rules for this class, or
                inherited rules that overlap.
        """
        self._check(fmt)
        pieces = self._along_mro(cls, fmt)
        if fmt != "hf":
            if not pieces:
                raise WeightError(
                    f"{cls.__qualname__} declares no names for {fmt} checkpoints; "
                    f"register NameRules for ({cls.__qualname__}, {fmt!r})"
                )
            pieces += self._along_mro(cls, "hf")
        nestings = [piece.nesting for piece in pieces if piece.nesting is not None]
        return NameMap(
            tuple(piece.renames for piece in pieces if piece.renames),
            tuple(dict.fromkeys(rule for piece in pieces for rule in piece.skips)),
            tuple(dict.fromkeys(rule for piece in pieces for rule in piece.stacking)),
            tuple(dict.fromkeys(rule for piece in pieces for rule in piece.spellings)),
            nestings[0] if nestings and fmt == "hf" else None,
            experts=tuple(dict.fromkeys(rule for piece in pieces for rule in piece.experts)),
        )

    def _along_mro(self, cls: type, fmt: str) -> list[NameRules]:
        pieces: list[NameRules] = []
        for base in cls.__mro__:
            rules = self._rules.get((base, fmt))
            if rules is not None:
                pieces.append(rules)
                if not rules.inherit:
                    break
        return pieces

    @staticmethod
    def _check(fmt: str) -> None:
        if fmt not in FORMATS:
            raise WeightError(f"no checkpoint format {fmt!r}; formats are {', '.join(FORMATS)}")
