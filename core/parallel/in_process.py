"""InProcessWorld: all ranks of a topology as threads of one process, for simulation and tests.

One rank runs at a time and gives way only in collectives, so a run is repeatable, faster than free
threads from a few dozen ranks on, and every failure to meet is seen at once, without a timeout.
What it costs beside the ranks' own work is a thread switch for each rank and collective.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..errors import CollectiveError, TopologyError
from .baton import Baton
from .group import CommunicatorFactory
from .meeting import (
    Call,
    caller,
    check_divisible,
    check_peer,
    check_splits,
    describe,
    name_ranks,
    normal_dim,
    settle,
)

T = TypeVar("T")

MAX_RANKS = 64
"""Ranks one in-process world may have."""


class CollectiveRecord(NamedTuple):
    """One rank's part in a collective.

    Args:
        kind: method name, ``all_reduce``.
        group: name of the group.
        nbytes: bytes of this rank's input (for recv: of what it receives).
        rank: global rank.
    """

    kind: str
    group: str
    nbytes: int
    rank: int


class InProcessWorld:
    """Ranks of one process that meet in collectives.

    ::

        world = InProcessWorld(3)
        groups = [Groups.of(Topology(tp=3, rank=r), world.factory(r)) for r in range(3)]
        sums = world.run(lambda rank: groups[rank]["tp"].all_reduce(x[rank]))

    A pickled world is an idle one of the same size: ranks pickled together meet again. A deep copy
    of a module stays in its world.

    Args:
        size: ranks, 1 to 64.

    Raises:
        TopologyError: another size.
    """

    def __init__(self, size: int) -> None:
        """Start the ranks' threads, idle."""
        if not 1 <= size <= MAX_RANKS:
            raise TopologyError(
                f"an in-process world has 1 to {MAX_RANKS} ranks, not {size}; "
                "start more ranks as processes, with torchrun"
            )
        self.size = size
        self._hall = _Hall(size)
        self._end = weakref.finalize(self, self._hall.baton.close)

    def __reduce__(self) -> tuple[Callable[[int], InProcessWorld], tuple[int]]:
        """An idle world of this size."""
        return InProcessWorld, (self.size,)

    def __deepcopy__(self, memo: dict[int, Any]) -> InProcessWorld:
        """This world: copies of a rank's modules keep meeting the other ranks."""
        return self

    def factory(self, rank: int) -> CommunicatorFactory:
        """What gives this rank its communicators.

        Raises:
            TopologyError: no such rank here.
        """
        if not 0 <= rank < self.size:
            raise TopologyError(f"rank {rank} is outside an in-process world of {self.size} ranks")

        def make(name: str, ranks: tuple[int, ...], index: int) -> InProcessCommunicator:
            if not 0 <= index < len(ranks) or ranks[index] != rank or max(ranks) >= self.size:
                raise TopologyError(
                    f"group {name!r} of ranks {ranks}, index {index}, is not one of rank {rank} in "
                    f"an in-process world of {self.size} ranks"
                )
            return InProcessCommunicator(self, name, ranks, rank)

        return make

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Run function(rank) on every rank to its end.

        Each rank runs in its own thread, the same one every time, in the caller's inference mode,
        grad mode, intra-op thread count, CUDA stream and context variables. After an error the
        world can be used again, and after a fork in the child too, with threads of its own.

        Returns:
            The results, in rank order.

        Raises:
            CollectiveError: ranks did not meet, or this world is running already.
            BaseException: what the first rank to fail raised, with its rank as a note.
        """
        return self._hall.baton.run(function)

    @contextmanager
    def record(self) -> Iterator[list[CollectiveRecord]]:
        """Collect what every rank enters, in the order it happens."""
        log: list[CollectiveRecord] = []
        self._hall.logs.append(log)
        try:
            yield log
        finally:
            self._hall.logs = [other for other in self._hall.logs if other is not log]

    def meet(self, call: Call) -> Call:
        """Wait until all members of the call have come; the call then holds its result."""
        self._hall.meet(call)
        return call


@dataclass(frozen=True)
class InProcessCommunicator:
    """Collectives of one rank over one group of an in-process world.

    Args:
        world: where the ranks meet.
        group: name of the group.
        ranks: its global ranks, in group order.
        rank: global rank of the caller.
    """

    world: InProcessWorld
    group: str
    ranks: tuple[int, ...]
    rank: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum in group order, in x's dtype: the same bits on every rank."""
        return self._meet("all_reduce", x)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """All ranks' x along dim, in group order."""
        dim = normal_dim(x, dim, "all_gather", self.group)
        return self._meet("all_gather", x, f"dim {dim}", dim)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part, along dim, of the sum."""
        dim = normal_dim(x, dim, "reduce_scatter", self.group)
        check_divisible(x, dim, len(self.ranks), self.group)
        return self._meet("reduce_scatter", x, f"dim {dim}", dim)

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows for each rank, against rows from each."""
        check_splits(x, send, receive, len(self.ranks), self.group)
        splits = (tuple(send), tuple(receive))
        return _result(self._enter("all_to_all", x, self.ranks, splits=splits))

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """The x of rank src of the group."""
        check_peer("broadcast", src, self.ranks, self.group)
        return self._meet("broadcast", x, f"src {src}", src)

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x over; returns when rank dst has received it."""
        self._enter("send", x, members=(self.rank, self._other("send", dst)))

    def recv(self, like: Tensor, src: int) -> Tensor:
        """What rank src sends; like gives shape and dtype."""
        return _result(self._enter("recv", like, members=(self._other("recv", src), self.rank)))

    def _other(self, kind: str, peer: int) -> int:
        check_peer(kind, peer, self.ranks, self.group, self.ranks.index(self.rank))
        return self.ranks[peer]

    def _meet(self, kind: str, x: Tensor, detail: str = "", index: int = 0) -> Tensor:
        return _result(self._enter(kind, x, self.ranks, detail, index))

    def _enter(
        self,
        kind: str,
        x: Tensor,
        members: tuple[int, ...],
        detail: str = "",
        index: int = 0,
        splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> Call:
        x, where = x.detach(), caller()
        call = Call(
            kind, self.group, self.ranks, self.rank, x, detail, index, members, where, splits
        )
        return self.world.meet(call)


def _result(call: Call) -> Tensor:
    assert call.result is not None
    return call.result


class _Hall:
    """Where ranks wait for each other. Only the holder of the baton touches it.

    Apart from the world, so that the threads do not keep the world alive.
    """

    def __init__(self, size: int) -> None:
        self.baton = Baton(size, self._began, self._ended, self._stuck)
        self.logs: list[list[CollectiveRecord]] = []
        self._open: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Call]] = {}
        self._gone: set[int] = set()

    def meet(self, call: Call) -> None:
        """Enter, wait for the others, leave with the result."""
        self.baton.check_thread(call.rank, call.kind)
        for log in self.logs:
            log.append(CollectiveRecord(call.kind, call.group, call.x.nbytes, call.rank))
        calls = self._open.setdefault(call.key, [])
        calls.append(call)
        self._check(calls)
        if len(calls) < len(call.members):
            self.baton.wait(call.rank)
            return
        del self._open[call.key]
        settle(calls)
        for other in calls:
            if other is not call:
                self.baton.resume(other.rank)

    def _check(self, calls: list[Call]) -> None:
        """Refuse calls that do not fit, and calls whose members cannot all come."""
        last = calls[-1]
        others = calls[:1] if last.splits is None else calls
        if not all(other is last or last.fits(other) for other in others):
            self._fail(
                f"ranks met in different collectives: {describe(calls)}; all ranks of a group make "
                "the same calls in the same order, with the same shapes and dtypes"
            )
        if self._gone.intersection(last.members):
            self._fail(self._missing(calls))

    def _fail(self, message: str) -> None:
        error = CollectiveError(message)
        self.baton.fail(error)
        raise error

    def _missing(self, calls: list[Call]) -> str:
        gone = self._gone.intersection(calls[0].members)
        return f"{name_ranks(gone)} ended without entering what others wait for: {describe(calls)}"

    def _began(self) -> None:
        self._open.clear()
        self._gone.clear()

    def _ended(self, rank: int) -> None:
        self._gone.add(rank)
        for calls in self._open.values():
            if rank in calls[0].members:
                self.baton.fail(CollectiveError(self._missing(calls)))

    def _stuck(self) -> CollectiveError:
        waiting = [call for calls in self._open.values() for call in calls]
        return CollectiveError(
            f"deadlock, every rank waits for another: {describe(waiting)}; the ranks must make the "
            "calls of their groups in one order"
        )
