"""What a stage declares about itself: pure data, the same on every topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ..errors import BoundaryError
from ..parallel.axes import RowSet

Read = Literal["norm", "plain", "replace", "take"]
"""How a stage reads the complete stream: normalised (``norm``); as it is (``plain``); normalised,
and that becomes the stream (``replace``: BERT); as it is, leaving the stream to what the stage
gives back (``take``: a layer that drives its own residual)."""

SumGroup = Literal["tp", "attn_tp", "none", "moe"]
Kind = Literal["layer", "head", "handoff"]
AUX = "aux"
"""The reader that captures an auxiliary hidden state."""


@dataclass(frozen=True)
class Branch:
    """One computation that reads the stream and adds to it.

    Args:
        name: unique in its stage.
        rows: row sets it can compute on.
        group: its output is partial over it.
        post: its complete output is normalised before it joins the stream.
        quant: its rows may come quantized; they come plainly until a method exists.
    """

    name: str
    rows: tuple[RowSet, ...]
    group: SumGroup
    post: bool = False
    quant: bool = True


@dataclass(frozen=True)
class StageFacts:
    """One stage of the stack.

    Args:
        name: for messages and tables; stages that are alike have the same.
        branches: all read the same stream; their outputs join it together.
        read: see ``Read``.
        shared_norm: all branches read through one norm.
        capture: the stream as this stage reads it is an auxiliary hidden state.
        kind: a layer's stage; the head, which ends the stack; the way to the next pipeline stage.
        selects: keeps only the rows it needs (head).
        sparse, next_sparse: whether this layer's FFN and the next one's have experts, if known.

    Raises:
        BoundaryError: a word that means nothing, or facts that contradict each other.
    """

    name: str
    branches: tuple[Branch, ...]
    read: Read = "norm"
    shared_norm: bool = True
    capture: bool = False
    kind: Kind = "layer"
    selects: bool = False
    sparse: bool | None = None
    next_sparse: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be planned."""
        self._check("read", (self.read,), Read)
        self._check("kind", (self.kind,), Kind)
        for branch in self.branches:
            self._check(f"group of {branch.name}", (branch.group,), SumGroup)
            self._check(f"rows of {branch.name}", branch.rows or ("",), RowSet)
        want = {"handoff": 0, "head": 1}.get(self.kind, max(1, len(self.branches)))
        readers = (*(branch.name for branch in self.branches), AUX)
        if len(self.branches) != want or len(set(readers)) < len(readers):
            raise BoundaryError(
                f"{self.name}: a {self.kind} stage with branches {readers[:-1]}; a layer has one or "
                f"more, a head one, a handoff none, each with a name of its own, not {AUX!r}"
            )
        if self.selects and self.kind != "head":
            raise BoundaryError(f"{self.name}: only a head selects rows, not a {self.kind} stage")

    def _check(self, what: str, given: Sequence[str], words: object) -> None:
        for value in set(given) - set(get_args(words)):
            known = ", ".join(get_args(words))
            raise BoundaryError(f"{self.name}: {what} is {value!r}; expected one of {known}")

    @property
    def readers(self) -> tuple[str, ...]:
        """Who gets rows from the read: the branches, and ``aux`` where it is captured."""
        return (*(branch.name for branch in self.branches), *((AUX,) if self.capture else ()))

    @property
    def normalises(self) -> bool:
        """Whether the read runs a norm."""
        return self.read in ("norm", "replace")

    @property
    def shares_rows(self) -> bool:
        """Whether all branches read the same values."""
        return self.shared_norm or self.read != "norm"


HANDOFF = StageFacts("handoff", (), "plain", kind="handoff")
"""Between two pipeline stages: the stream settles to one complete term, which is sent."""


def declare_attn(
    *, read: Read = "norm", post: bool = False, quant: bool = True, capture: bool = False
) -> StageFacts:
    """An attention stage: each attention group computes its own rows, split over attn_tp."""
    branch = Branch("attn", ("attn",), "attn_tp", post, quant)
    return StageFacts("attn", (branch,), read, capture=capture)


def declare_ffn(
    *,
    sparse: bool = False,
    next_layer_sparse: bool | None = None,
    rows: tuple[RowSet, ...] = ("all",),
    group: SumGroup = "tp",
    read: Read = "norm",
    post: bool = False,
    quant: bool = True,
    capture: bool = False,
) -> StageFacts:
    """A feed-forward stage, split over the whole pipeline stage unless rows and group differ.

    Args:
        sparse: it has experts; see also ``declare_moe``.
        next_layer_sparse: checked against the next layer.
        rows, group, read, post, quant, capture: see Branch and StageFacts.
    """
    facts = StageFacts("mlp", (Branch("mlp", rows, group, post, quant),), read, capture=capture)
    return replace(facts, sparse=sparse, next_sparse=next_layer_sparse)


def declare_moe(*, read: Read = "norm", post: bool = False, quant: bool = True) -> StageFacts:
    """A stage of experts: all rows, partial over the whole pipeline stage. Where experts are dealt
    to ranks, an attention group's rows, partial over it: its module exchanges them with the others.
    """
    return declare_ffn(sparse=True, rows=("moe",), group="moe", read=read, post=post, quant=quant)


def declare_parallel(*stages: StageFacts, shared_norm: bool = True) -> StageFacts:
    """Stages that read the same stream, as one: parallel attention and FFN.

    Raises:
        BoundaryError: they read in different ways.
    """
    name = "+".join(stage.name for stage in stages)
    if len({stage.read for stage in stages}) != 1:
        raise BoundaryError(f"{name}: parallel stages read in one way; give them the same read=")
    branches = tuple(branch for stage in stages for branch in stage.branches)
    capture = any(stage.capture for stage in stages)
    joined = replace(stages[-1], name=name, branches=branches, capture=capture)
    return replace(joined, shared_norm=shared_norm)


def declare_own(name: str, *, rows: tuple[RowSet, ...] = ("attn",)) -> StageFacts:
    """A layer that drives its own residual: takes the stream, gives back the complete new one."""
    return StageFacts(name, (Branch(name, rows, "none", quant=False),), "take")


def declare_head(
    *, rows: RowSet = "all", selects: bool = True, read: Read = "norm", capture: bool = False
) -> StageFacts:
    """Final norm and head: all rows for a vocabulary split over tp, attn over attn_tp."""
    branch = Branch("head", (rows,), "none", quant=False)
    return StageFacts("head", (branch,), read, capture=capture, kind="head", selects=selects)


def check_stack(stages: Sequence[StageFacts]) -> None:
    """Refuse a stack that goes on after the head, or whose layers contradict each other.

    Raises:
        BoundaryError: which stage, and what it contradicts.
    """
    said: bool | None = None
    for index, stage in enumerate(stages):
        if index and stages[index - 1].kind == "head":
            raise BoundaryError(
                f"stage {index} ({stage.name}) follows the head, the end of a stack"
            )
        if stage.sparse is not None:
            if said not in (None, stage.sparse):
                raise BoundaryError(
                    f"stage {index} ({stage.name}) has sparse={stage.sparse}, the layer before it "
                    f"says next_layer_sparse={said}; make stage_facts agree"
                )
            said = stage.next_sparse
