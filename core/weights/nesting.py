"""Nesting: what a checkpoint puts in front of a decoder's names, found once for all of them.

The same backbone is stored as ``model.layers.0…`` by one trainer, and by others as ``layers.0…``,
``model.model.layers.0…``, ``language_model.model.layers.0…``, ``model.language_model.layers.0…``
(beside a top-level ``lm_head``) or ``base_model.model.model.layers.0…``. Undoing such a wrapper
name by name would let half of a checkpoint be wrapped; here every name must agree.

Training puts further components at any place, around single layers too (torch.compile, FSDP,
activation checkpointing): they never mean anything, so they are left out wherever they stand.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from ..errors import WeightError
from .patterns import Parts, split


@dataclass(frozen=True)
class Nesting:
    """Where a decoder's own names begin.

    Args:
        root: the backbone's component in the model, ``model``.
        inside: first components below the backbone.
        beside: first components beside it: the heads.
        wrappers: components that may stand in front of either, in any order and number.
        anywhere: components that mean nothing wherever they stand.
    """

    root: str
    inside: tuple[str, ...]
    beside: tuple[str, ...]
    wrappers: tuple[str, ...]
    anywhere: tuple[str, ...] = ()

    def unwrap(self, names: Iterable[str]) -> dict[str, str]:
        """Each name without the components that mean nothing -> the name, where they differ.

        Raises:
            WeightError: two names that differ in nothing else.
        """
        bare: dict[str, str] = {}
        for name in names:
            rest = without(name, self.anywhere)
            if bare.setdefault(rest, name) != name:
                raise WeightError(_mixture(f"{rest!r}", (bare[rest], name)))
        return {rest: name for rest, name in bare.items() if rest != name}

    def recognise(self, names: Iterable[str]) -> Wrapping:
        """What the names of one checkpoint are wrapped in.

        Raises:
            WeightError: backbone or heads lie at two places, or not beside each other.
        """
        first: dict[str, dict[Parts, str]] = {"the backbone": {}, "its heads": {}}
        for name in names:
            found = self._anchor(split(name))
            if found is not None:
                what, prefix = found
                first[what].setdefault(prefix, name)
        for what, examples in first.items():
            if len(examples) > 1:
                raise WeightError(_mixture(what, tuple(examples.values())))
        backbone = next(iter(first["the backbone"]), None)
        heads = next(iter(first["its heads"]), None)
        if backbone is None:
            backbone = (*(heads or ()), self.root)
        if heads is None:
            heads = backbone[:-1]
        elif heads and (heads == backbone or heads != backbone[: len(heads)]):
            pair = (first["the backbone"][backbone], first["its heads"][heads])
            raise WeightError(_mixture("the model", pair))
        return Wrapping(self, backbone, heads)

    def _anchor(self, name: Parts) -> tuple[str, Parts] | None:
        """Whose name it is and what stands in front; None when it is neither's."""
        for at, part in enumerate(name):
            if part in self.inside:
                return "the backbone", name[:at]
            if part in self.beside:
                return "its heads", name[:at]
            if part not in self.wrappers:
                return None
        return None


@dataclass(frozen=True)
class Wrapping:
    """What one checkpoint's names are wrapped in.

    Args:
        nesting: where the model's own names begin.
        backbone: stands in the checkpoint where ``nesting.root`` stands in the model.
        heads: stands in front of the heads.
    """

    nesting: Nesting
    backbone: Parts
    heads: Parts

    def renames(self) -> tuple[tuple[str, str], ...]:
        """(checkpoint pattern, model pattern) that undo it; none when nothing is wrapped."""
        root = (self.nesting.root,)
        pairs = [*_moved(self.nesting.inside, self.backbone, root)]
        pairs += _moved(self.nesting.beside, self.heads, ())
        return tuple(pairs)

    def __str__(self) -> str:
        """For the report."""
        found, root = ".".join(self.backbone), self.nesting.root
        where = ".".join(self.heads)
        heads = f"heads under '{where}'" if where else "heads at the top"
        return f"names are wrapped: the backbone {root!r} is stored as {found!r}, {heads}"


def without(name: str, components: Container[str]) -> str:
    """A name that lacks some components."""
    return ".".join(part for part in split(name) if part not in components)


def wrapper_note(nesting: Nesting, stored: Iterable[str]) -> str:
    """For the report: which components are left out of the names of a checkpoint."""
    examples = {part: name for name in stored for part in split(name) if part in nesting.anywhere}
    told = ", ".join(f"{part!r} (as in {name})" for part, name in sorted(examples.items()))
    return f"components of training wrappers are left out of names: {told}"


def _moved(children: Iterable[str], stored: Parts, canonical: Parts) -> list[tuple[str, str]]:
    if stored == canonical:
        return []
    return [
        (".".join((*stored, child, "**")), ".".join((*canonical, child, "**")))
        for child in children
    ]


def _mixture(what: str, names: tuple[str, ...]) -> str:
    shown = " and ".join(repr(name) for name in names[:3])
    return (
        f"the checkpoint stores {what} at {len(names)} places that do not belong together, such as "
        f"{shown}; two models or two saves are mixed: leave only one of them"
    )
