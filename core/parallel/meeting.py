"""One collective of an in-process world: who came with what, whether it fits, what they get.

Pure functions and data; the threads are in ``baton`` and ``in_process``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CollectiveError, ShapeError

_HERE = Path(__file__).parent
_INSIDE = frozenset(str(_HERE / name) for name in ("meeting.py", "in_process.py", "group.py"))

P2P = {"send": "recv", "recv": "send"}
"""The two calls of a hand-over, each the answer to the other."""


@dataclass(eq=False, slots=True)
class Call:
    """One rank's arrival at a collective.

    Args:
        kind: method name of the Communicator.
        group: name of the group.
        ranks: global ranks of the group, in group order.
        rank: global rank of the caller.
        x: its input; for recv the tensor that has the wanted shape and dtype.
        detail: what else must agree, as text: the dim, the source.
        index: the same as a number.
        members: global ranks that must come; both ends for send and recv.
        splits: of all_to_all, rows for each rank and rows from each.
        where: file and line of the caller.
        result: what the caller gets, once all have come.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    rank: int
    x: Tensor
    detail: str
    index: int
    members: tuple[int, ...]
    where: tuple[str, int]
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    result: Tensor | None = field(default=None)

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Calls with one key meet; the name is left out, so that a wrong name is noticed."""
        return (self.ranks, self.members)

    def fits(self, other: Call) -> bool:
        """Whether two calls that met may be served together."""
        return (
            other.kind == P2P.get(self.kind, self.kind)
            and self.group == other.group
            and self.detail == other.detail
            and self._shape == other._shape
            and self._exchanges(other)
            and self.x.dtype == other.x.dtype
            and self.x.device == other.x.device
        )

    @property
    def _shape(self) -> torch.Size:
        """What must be equal on all ranks; they may exchange other numbers of rows."""
        return self.x.shape if self.splits is None else self.x.shape[1:]

    def _exchanges(self, other: Call) -> bool:
        """Whether each expects the rows that the other sends."""
        if self.splits is None or other.splits is None:
            return self.splits is other.splits
        here, there = self.ranks.index(self.rank), self.ranks.index(other.rank)
        gives, takes = self.splits[0][there], self.splits[1][there]
        return (gives, takes) == (other.splits[1][here], other.splits[0][here])

    def __str__(self) -> str:
        """Kind, group, shape, dtype, place in the caller's code."""
        detail = f" ({self.detail})" if self.detail else ""
        if self.splits is not None:
            detail = f" ({list(self.splits[0])} rows to send, {list(self.splits[1])} to receive)"
        x = self.x
        kind = f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}"
        file, line = self.where
        short = "/".join(Path(file).parts[-2:])
        return f"{self.kind}{detail} over group {self.group!r} of {kind} at {short}:{line}"


def caller() -> tuple[str, int]:
    """File and line of the nearest frame outside the collectives themselves."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _INSIDE and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def normal_dim(x: Tensor, dim: int, kind: str, group: str) -> int:
    """dim counted from the front.

    Raises:
        ShapeError: x has no such dim.
    """
    if not -x.dim() <= dim < x.dim():
        raise ShapeError(
            f"{kind} over group {group!r}: a tensor of shape {list(x.shape)} has no dim {dim}; "
            f"choose one of its {x.dim()}"
        )
    return dim % x.dim()


def check_divisible(x: Tensor, dim: int, size: int, group: str) -> None:
    """Refuse a reduce_scatter that would give ranks unequal parts.

    Raises:
        ShapeError: the dim is not a multiple of the group's size.
    """
    if x.shape[dim] % size:
        raise ShapeError(
            f"reduce_scatter over group {group!r}: dim {dim} of shape {list(x.shape)} cannot be cut "
            f"into {size} equal parts; pad it to a multiple of {size}"
        )


def check_splits(
    x: Tensor, send: Sequence[int], receive: Sequence[int], size: int, group: str
) -> None:
    """Refuse an all_to_all whose counts are not those of x and of the group.

    Raises:
        ShapeError: not one count >= 0 for each rank, or others than the rows of x.
    """
    counts = (*send, *receive)
    if len(send) != size or len(receive) != size or min(counts) < 0 or sum(send) != len(x):
        raise ShapeError(
            f"all_to_all over group {group!r}: {list(send)} rows to send and {list(receive)} to "
            f"receive for a tensor of shape {list(x.shape)}; give one count for each of {size} ranks, "
            "those to send adding up to its rows"
        )


def check_peer(
    kind: str, peer: int, ranks: Sequence[int], group: str, me: int | None = None
) -> None:
    """Refuse a source or destination that is not in the group, or is the caller itself.

    Args:
        peer: index in the group.
        ranks: the group.
        me: the caller's index where it cannot be its own peer (send, recv).

    Raises:
        CollectiveError: peer is not an index of the group, or is me.
    """
    if not 0 <= peer < len(ranks):
        raise CollectiveError(
            f"{kind} over group {group!r}: rank {peer} is outside a group of {len(ranks)} ranks; "
            "ranks are counted inside the group, from 0"
        )
    if peer == me:
        raise CollectiveError(
            f"{kind} over group {group!r}: rank {peer} of the group is the caller itself; a rank "
            "cannot hand over to itself"
        )


def settle(calls: list[Call]) -> None:
    """Give every caller its result.

    Sums are taken in group order in the tensors' own dtype, so all ranks get the same bits. No
    two results share storage, none shares it with an input.
    """
    first = calls[0]
    if first.kind in P2P:
        _hand_over(calls)
        return
    calls.sort(key=lambda call: call.ranks.index(call.rank))
    for call, result in zip(calls, _results(first, calls), strict=True):
        call.result = result


def _hand_over(calls: list[Call]) -> None:
    sent = next(call.x for call in calls if call.kind == "send")
    for call in calls:
        if call.kind == "recv":
            call.result = _copy(sent)


def _results(call: Call, calls: list[Call]) -> Iterable[Tensor]:
    inputs = [each.x for each in calls]
    size = len(inputs)
    match call.kind:
        case "all_reduce":
            total = _sum(inputs)
            return [total, *(total.clone() for _ in range(size - 1))]
        case "all_gather":
            return [torch.cat(inputs, call.index) for _ in range(size)]
        case "reduce_scatter":
            return [_copy(part) for part in _sum(inputs).chunk(size, call.index)]
        case "all_to_all":
            return _exchanged(calls)
        case "broadcast":
            return [_copy(inputs[call.index]) for _ in range(size)]
    raise AssertionError(call.kind)


def _exchanged(calls: list[Call]) -> Iterable[Tensor]:
    parts = [torch.split(each.x, list(each.splits[0])) for each in calls if each.splits is not None]
    return [torch.cat(rows) for rows in zip(*parts, strict=True)]


def _sum(inputs: list[Tensor]) -> Tensor:
    total = _copy(inputs[0])
    for x in inputs[1:]:
        total += x
    return total


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def describe(calls: Iterable[Call]) -> str:
    """Calls and the ranks that made them, equal ones together."""
    by_text: dict[str, list[int]] = {}
    for call in sorted(calls, key=lambda call: call.rank):
        by_text.setdefault(str(call), []).append(call.rank)
    return "; ".join(f"{name_ranks(ranks)} in {text}" for text, ranks in by_text.items())


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 1, 2``; long lists as runs: ``ranks 0-62``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(runs) == 1 and len(runs[0]) == 1 else "ranks ") + ", ".join(texts)
