"""The one automaton that says which elementary steps are legal inside a boundary.

What it cannot express cannot happen: slicing a partial value, reading or post-norming an unpaid
one, adding values that lie differently, paying twice, entering a stage on rows it does not accept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..errors import BoundaryError
from ..parallel.axes import Axes
from ..parallel.placement import OPS, Rules, Term, changes
from .facts import AUX, StageFacts

Stream = tuple[Term, ...]
"""A sorted multiset of terms; its value is their sum. The residual is a term like any other."""


class Step(NamedTuple):
    """One elementary step.

    Args:
        op: one of OPS.
        on: the stream (empty), or after the read the rows of these readers.
        src, dst: placement before and after.
    """

    op: str
    on: tuple[str, ...]
    src: Term
    dst: Term

    def text(self, axes: Axes) -> str:
        """``all_gather attn SS>RR``."""
        src, dst = self.src.letters(axes), self.dst.letters(axes)
        words = (self.op, "+".join(self.on), src if src == dst else f"{src}>{dst}")
        return " ".join(word for word in words if word)


class State(NamedTuple):
    """What is known inside a boundary.

    Args:
        stream: terms not yet consumed.
        rows: after the read, over how many axes each reader's rows are split.
        selected: only the head's rows are left.
    """

    stream: Stream
    rows: tuple[int, ...] | None = None
    selected: bool = False

    def text(self, axes: Axes) -> str:
        """Terms, and after the read the rows."""
        text = "{" + " ".join(term.letters(axes) for term in self.stream) + "}"
        if self.rows is not None:
            text += " read " + " ".join(Term(at, axes.count).letters(axes) for at in self.rows)
        return text + " selected" * self.selected


def apply(rules: Rules, stage: StageFacts, state: State, step: Step) -> State:
    """The state after a step.

    Raises:
        BoundaryError: the step is not legal here.
    """
    after = _after(rules, stage, state, step)
    if after is None:
        why = OPS.get(step.op, f"is no step; steps are {', '.join(OPS)}")
        when = "" if state.rows is None else "after the read only rows move; "
        raise BoundaryError(
            f"{stage.name}: {step.text(rules.axes)} is not legal from {state.text(rules.axes)}: "
            f"{when}{step.op} {why}"
        )
    return after


def finish(rules: Rules, stage: StageFacts, state: State) -> Stream:
    """The stream after the stage has computed from this state.

    Raises:
        BoundaryError: the stage cannot compute from it.
    """
    stream = entered(rules, stage, state)
    if stream is None:
        needs = [f"{b.name} on rows {b.rows}, summed over {b.group}" for b in stage.branches]
        raise BoundaryError(
            f"{stage.name} cannot be entered from {state.text(rules.axes)}; it needs "
            f"{'; '.join(needs) or 'one complete term'}"
        )
    return stream


def entered(rules: Rules, stage: StageFacts, state: State) -> Stream | None:
    """As ``finish``; None where the stage cannot compute."""
    axes = rules.axes
    if stage.kind == "handoff":
        whole = len(state.stream) == 1 and state.stream[0][1:] == (axes.count, "")
        return state.stream if whole else None
    if state.rows is None or state.selected != stage.selects:
        return None
    if stage.capture and state.rows[-1] != axes.attn_depth:
        return None
    left = outputs(axes, stage, state)
    for branch, term in zip(stage.branches, left, strict=True):
        if term.split > term.debt or term.split not in map(axes.depth, branch.rows):
            return None
    return () if stage.kind == "head" else tuple(sorted((*state.stream, *left)))


def outputs(axes: Axes, stage: StageFacts, state: State) -> tuple[Term, ...]:
    """How each branch's output lies once it has computed from this state."""
    depths = zip(stage.branches, state.rows or (), strict=False)
    return tuple(
        Term(depth, axes.debt(branch.group), branch.name if branch.post else "")
        for branch, depth in depths
    )


def steps_from(rules: Rules, stage: StageFacts, state: State) -> Iterator[tuple[Step, State]]:
    """Every legal step and the state after it, in a fixed order."""
    places: list[tuple[tuple[str, ...], Term]] = [
        ((), term) for term in dict.fromkeys(state.stream)
    ]
    if state.rows is not None:
        places = [(on, Term(at, rules.axes.count)) for on, at in _movable(stage, state.rows)]
    for on, src in places:
        for op, dst in changes(rules, src):
            step = Step(op, on, src, dst)
            after = _after(rules, stage, state, step)
            if after is not None:
                yield step, after


def _after(rules: Rules, stage: StageFacts, state: State, step: Step) -> State | None:
    """The state after a legal step, else None."""
    if (step.op, step.dst) not in changes(rules, step.src):
        return None
    if step.on or state.rows is not None:
        return _move_rows(rules, stage, state, step)
    terms = list(state.stream)
    if step.src not in terms or step.op == "select":
        return None
    if step.op == "read":
        if len(terms) > 1 or stage.kind == "handoff":
            return None
        kept = () if stage.read == "take" else state.stream
        return State(kept, (step.src.split,) * len(stage.readers))
    terms.remove(step.src)
    if step.op == "merge":
        return State(tuple(terms)) if step.src in terms else None
    return State(tuple(sorted((*terms, step.dst))))


def _move_rows(rules: Rules, stage: StageFacts, state: State, step: Step) -> State | None:
    if state.rows is None or step.src != Term(step.src.split, rules.axes.count):
        return None
    if (step.on, step.src.split) not in _movable(stage, state.rows):
        return None
    chosen = state.selected and step.on != (AUX,)
    if step.op == "select":
        wanted = stage.selects and not state.selected and step.on != (AUX,)
        return state._replace(selected=True) if wanted else None
    if step.op != "all_gather" and (step.op != "slice" or chosen):
        return None
    moved = zip(stage.readers, state.rows, strict=True)
    rows = tuple(step.dst.split if name in step.on else at for name, at in moved)
    return state._replace(rows=rows)


def _movable(stage: StageFacts, rows: tuple[int, ...]) -> list[tuple[tuple[str, ...], int]]:
    """Readers that one step can move, with their depth: each, and branches that hold the same."""
    alone = [((name,), at) for name, at in zip(stage.readers, rows, strict=True)]
    found: list[tuple[tuple[str, ...], int]] = [*alone]
    for depth in sorted(set(rows)) if stage.shares_rows else ():
        held = zip(stage.branches, rows, strict=False)
        together = tuple(branch.name for branch, at in held if at == depth)
        if len(together) > 1:
            found.append((together, depth))
    return found
