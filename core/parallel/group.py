"""Group: a named set of ranks with the collectives a layer may run over it.

A layer binds one Group at construction and uses it both to cut its parameters and to sum its
partial results, so the two can never disagree. The group is frozen data plus a communicator;
layers never ask anything global for a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from ..errors import CollectiveError
from .topology import GROUP_NAMES, Topology


class Communicator(Protocol):
    """Collectives over one group of ranks. Inputs are never changed; results are new tensors.

    All ranks of the group call the same methods in the same order with the same shapes and
    dtypes (of all_to_all, the same but for rows). Dimensions are non-negative or negative as in torch.
    """

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the group, same shape on every rank."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Concatenation of all ranks' equal-sized tensors along dim, in group order."""
        ...

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's equal part, along dim, of the sum over the group."""
        ...

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows for each rank, against rows from each rank; both in group order.

        Args:
            x: (sum of send, ...).
            send: rows for each rank of the group.
            receive: rows from each; what those ranks send here.

        Returns:
            (sum of receive, ...).
        """
        ...

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """The tensor of rank src (index in the group) on every rank."""
        ...

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst (index in the group)."""
        ...

    def recv(self, like: Tensor, src: int) -> Tensor:
        """A tensor of like's shape and dtype from rank src (index in the group)."""
        ...


@dataclass(frozen=True)
class Group:
    """A named set of ranks seen from one of them.

    Args:
        name: ``tp``, ``attn_tp``, … (a label for messages).
        ranks: global ranks, in group order.
        rank: this rank's index in ``ranks``.
        comm: what runs the collectives; None where only shapes are wanted (meta builds,
            preflight) and in groups of one.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    comm: Communicator | None = field(default=None, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of x over the group; x itself in a group of one."""
        return x if self.size == 1 else self._comm("all_reduce").all_reduce(x)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """All ranks' x along dim; x itself in a group of one."""
        return x if self.size == 1 else self._comm("all_gather").all_gather(x, dim)

    def reduce_scatter(self, x: Tensor, dim: int = 0) -> Tensor:
        """This rank's part of the sum along dim; x itself in a group of one."""
        return x if self.size == 1 else self._comm("reduce_scatter").reduce_scatter(x, dim)

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows of x for each rank, against rows from each; x itself in a group of one."""
        return x if self.size == 1 else self._comm("all_to_all").all_to_all(x, send, receive)

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Rank src's x on every rank; x itself in a group of one."""
        return x if self.size == 1 else self._comm("broadcast").broadcast(x, src)

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst of this group."""
        self._comm("send").send(x, dst)

    def recv(self, like: Tensor, src: int) -> Tensor:
        """Receive a tensor of like's shape and dtype from rank src of this group."""
        return self._comm("recv").recv(like, src)

    def _comm(self, what: str) -> Communicator:
        if self.comm is None:
            raise CollectiveError(
                f"{what} over group {self.name!r} of {self.size} ranks {self.ranks}: this group was "
                "built for shapes only; build the model with a communicator to run it"
            )
        return self.comm


CommunicatorFactory = Callable[[str, tuple[int, ...], int], Communicator | None]
"""(group name, global ranks in order, this rank's index) -> communicator."""


def no_communicator(name: str, ranks: tuple[int, ...], rank: int) -> None:
    """Factory for builds that only need shapes."""
    return None


@dataclass(frozen=True)
class Groups:
    """All groups of one rank, by name.

    Engines with groups of their own build this directly; ``Groups.of`` derives it from a
    topology.
    """

    by_name: dict[str, Group]

    @staticmethod
    def of(topology: Topology, factory: CommunicatorFactory = no_communicator) -> Groups:
        """Every group of ``topology.rank``; groups of one rank get no communicator."""
        groups: dict[str, Group] = {}
        for name in GROUP_NAMES:
            ranks = topology.ranks_of(name)
            index = ranks.index(topology.rank)
            comm = factory(name, ranks, index) if len(ranks) > 1 else None
            groups[name] = Group(name, ranks, index, comm)
        return Groups(groups)

    def __getitem__(self, name: str) -> Group:
        """The group of that name.

        Raises:
            CollectiveError: no such group was given.
        """
        if name not in self.by_name:
            raise CollectiveError(
                f"no group {name!r} here; this rank has {', '.join(sorted(self.by_name))}"
            )
        return self.by_name[name]


def shape_only(size: int, rank: int = 0, name: str = "tp") -> Group:
    """A group for shape questions: no communicator, ranks 0..size-1."""
    return Group(name, tuple(range(size)), rank)
