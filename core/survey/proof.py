"""Proof: what the plans of all ranks show together.

A rank's own plan proves that each element of its parameters is written once. Only all of them
together show that no element of the checkpoint is left behind: every tensor is skipped by a rule,
tied, handed to a module that loads itself, or cut into slices that together are the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from ..parallel import Box, ShardId, box_numel, whole
from ..weights import Fault, LoadPlan, Routes, WeightReport
from ..weights.layouts import Layout
from ..weights.remap import describe
from .report import RankFault

_Key = tuple[str, Fault]


class Proof:
    """Takes the plan of one rank after the other.

    Args:
        routes: where the checkpoint's names lead, the same for all of them.

    Attributes:
        skipped: rule -> tensors it leaves out, on any rank.
        reasons: rule -> why.
        tied, derived: of all ranks.
        notes: each once.
    """

    def __init__(self, routes: Routes) -> None:
        """No plan yet."""
        self._routes = routes
        self._faults: dict[_Key, list[int]] = {}
        self._fated: set[str] = set()
        self._layouts: dict[str, dict[int, Layout]] = {}
        self.skipped: dict[str, dict[str, None]] = {}
        self.reasons: dict[str, str] = {}
        self._changes: dict[str, tuple[str, ...]] = {}
        self.tied: dict[str, str] = {}
        self.derived: dict[str, None] = {}
        self.notes: dict[str, None] = {}

    def enter(self, rank: int, plan: LoadPlan, report: WeightReport) -> None:
        """Take one rank's plan.

        Args:
            rank: its number.
            plan: of its weights.
            report: the plan's findings.
        """
        for kind, faults in report.faults().items():
            for fault in faults:
                self._faults.setdefault((kind, fault), []).append(rank)
        for rule, names in report.skipped.items():
            self.skipped.setdefault(rule, {}).update(dict.fromkeys(names))
        self.reasons.update(report.skip_reasons)
        self.tied.update(report.tied)
        self.derived.update(dict.fromkeys(report.derived))
        self.notes.update(dict.fromkeys(report.notes))
        self._fated.update(check.tensor for check in plan.tie_checks)
        for bias in plan.bias_checks:
            name = bias.tensor.name
            self.skipped.setdefault(bias.rule, {})[name] = None
            self.reasons[bias.rule] = f"{bias.why}, which load reads; if not, it is refused"
        if plan.bias_checks:
            self.notes[
                "biases that the config has no place for: left out if all their values are zero, "
                "which shows when they are read; if not, the checkpoint is refused"
            ] = None
        for prefix, handed in plan.delegated.items():
            self._fated.update(name for _, name in handed)
            self.notes[
                f"{len(handed)} tensors are handed to {prefix}, which loads itself: what it takes "
                "of them shows when it does"
            ] = None
        for fill in plan.fills:
            layouts = self._layouts.setdefault(fill.group.parameter, {})
            layouts[id(fill.layout)] = fill.layout
            self._changes[fill.parameter] = fill.layout.conversions

    @property
    def converted(self) -> dict[str, int]:
        """From -> to dtype -> tensors that change."""
        return dict(Counter(chain.from_iterable(self._changes.values())))

    def faults(self) -> tuple[RankFault, ...]:
        """All faults, those of several ranks once, and tensors that are left behind."""
        found = [
            RankFault(fault.name, fault.text, fault.status, kind, tuple(ranks))
            for (kind, fault), ranks in self._faults.items()
        ]
        return (*found, *self._unread())

    def _unread(self) -> Iterator[RankFault]:
        """Tensors of which no rank takes some elements."""
        fated = {fault.name for _, fault in self._faults}.union(self._fated, *self.skipped.values())
        known: dict[tuple[object, ...], dict[int, int]] = {}
        for parameter, group in self._routes.groups.items():
            layouts = self._layouts.get(parameter, {})
            key = (group.form, *sorted(layouts))
            if key not in known:
                shapes = [shape for _, shape, _ in group.form]
                known[key] = left_behind(shapes, list(layouts.values()))
            for number, elements in known[key].items():
                claim = group.claims[number]
                if claim.tensor.name not in fated:
                    yield _unread_fault(claim.tensor.name, parameter, claim.shard_id, elements)


def left_behind(shapes: list[tuple[int, ...]], layouts: list[Layout]) -> dict[int, int]:
    """Number of a tensor in its group -> elements of it that no layout takes; none when all are.

    A tensor without elements is taken where a layout has it at all.
    """
    boxes: dict[int, dict[Box, None]] = {}
    for layout in layouts:
        for number, pieces in layout.parts:
            taken = boxes.setdefault(number, {})
            taken.update((piece.source, None) for piece in pieces)
    found: dict[int, int] = {}
    for number, shape in enumerate(shapes):
        left = sum(map(box_numel, uncovered(whole(shape), list(boxes.get(number, ())))))
        if left or number not in boxes:
            found[number] = left
    return found


def uncovered(box: Box, taken: list[Box]) -> list[Box]:
    """What is left of a box when others, which may overlap, are cut out of it."""
    left = [box] if box_numel(box) else []
    for other in taken:
        left = [rest for part in left for rest in _without(part, other)]
    return left


def _without(box: Box, other: Box) -> Iterator[Box]:
    """Boxes that make up the rest of a box outside another, none empty."""
    meets = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True)]
    if any(start >= stop for start, stop in meets):
        yield box
        return
    inner: Box = ()
    for at, ((start, stop), (first, last)) in enumerate(zip(box, meets, strict=True)):
        for side in ((start, first), (last, stop)):
            if side[0] < side[1]:
                yield (*inner, side, *box[at + 1 :])
        inner = (*inner, (first, last))


def _unread_fault(tensor: str, parameter: str, shard_id: ShardId, elements: int) -> RankFault:
    where = describe(parameter, shard_id)
    text = f"{tensor}: no rank takes {elements} of its elements (for {where})"
    return RankFault(tensor, text, "unread", "unread")
