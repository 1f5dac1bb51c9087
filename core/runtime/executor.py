"""Executor: the same call on every rank this process answers for.

Three ways to have ranks, one interface: a single rank; all ranks simulated in this process; one
rank here and the others in processes of their own (torchrun), which make the same calls.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..parallel import CommunicatorFactory, Groups, Topology, no_communicator, spread
from ..parallel.in_process import InProcessWorld
from ..parallel.launch import init_from_torchrun, local_process_count, started_by_torchrun

T = TypeVar("T")
Tensors = Sequence[Tensor | None]


class Executor(ABC):
    """Runs a function for each local rank.

    Attributes:
        topology: sizes, seen from the first local rank.
        ranks: global ranks of this process, in order.
        one_thread: why threads cannot take turns at it; empty where they can.
        unforkable: why a forked child cannot run it; empty where it can.
    """

    topology: Topology
    ranks: tuple[int, ...]
    one_thread = ""
    unforkable = ""

    @abstractmethod
    def communicators(self, rank: int) -> CommunicatorFactory:
        """What gives a local rank its communicators."""

    @abstractmethod
    def run(self, function: Callable[[int], T]) -> list[T]:
        """function(rank) for each local rank; results in the order of ``ranks``."""

    def result_rank(self, group: int = 0) -> int:
        """The rank that has what a forward gives: first of an attention group, in the last stage.

        Args:
            group: number of the attention group.
        """
        sizes = self.topology
        return sizes.world_size - sizes.tp + group * sizes.attn_tp

    def agree(self, numbers: Sequence[Sequence[int]]) -> list[list[int]]:
        """Numbers of every attention group, as its result rank has them, on every process.

        Args:
            numbers: of each group; a process that lacks a group's gives as many others.
        """
        return [list(each) for each in numbers]

    def results(self, tensors: Sequence[Tensors]) -> list[Tensors]:
        """Tensors of every attention group, as its result rank has them, on every process.

        Args:
            tensors: of each local rank, equally many; before the last stage they are not read.
        """
        groups = range(self.topology.attn_dp)
        return [tensors[self.ranks.index(self.result_rank(group))] for group in groups]

    def of_rank(self, rank: int, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that one global rank makes, on every process.

        Args:
            rank: which.
            make: called on the process that answers for it.
        """
        return make()

    def least(self, number: int) -> int:
        """The smallest of all processes' numbers, on every process."""
        return number

    @property
    def processes(self) -> int:
        """How many processes make the same calls."""
        return 1

    def everyones(self, texts: Sequence[str]) -> list[list[str]]:
        """Each process's texts, by process, on every process."""
        return [list(texts)]

    @property
    def ranks_in_memory(self) -> int:
        """Ranks that share this process's memory, those of its neighbours on the host included."""
        return len(self.ranks)


class SingleExecutor(Executor):
    """One rank.

    Args:
        topology: of that rank alone; it may say how many layers its only stage has.
    """

    def __init__(self, topology: Topology | None = None) -> None:
        self.topology, self.ranks = topology or Topology(), (0,)

    def communicators(self, rank: int) -> CommunicatorFactory:
        """None are needed."""
        return no_communicator

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Call it."""
        return [function(0)]


class SimulatedExecutor(Executor):
    """Every rank of a topology, in this process.

    Args:
        topology: the sizes.

    Raises:
        TopologyError: more ranks than one process can simulate.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology.at(0)
        self.ranks = tuple(range(topology.world_size))
        self._world = InProcessWorld(topology.world_size)

    def communicators(self, rank: int) -> CommunicatorFactory:
        """In-process collectives."""
        return self._world.factory(rank)

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Run all ranks, switching at collectives."""
        return self._world.run(function)


class ProcessExecutor(Executor):
    """This process's rank of a job that torchrun started.

    Args:
        sizes: the topology wanted.
        device: where the model will run.

    Raises:
        TopologyError: another number of processes than ranks.
    """

    one_thread = (
        "a model was called by two threads at once under torchrun, where every process must make the "
        "same calls in the same order, which threads do not keep; make all calls from one thread"
    )
    unforkable = (
        "the other ranks are processes that know nothing of the child; start it by torchrun"
    )

    def __init__(self, sizes: Topology, device: torch.device) -> None:
        from ..parallel.distributed import distributed_factory

        self._device = device
        self.topology = init_from_torchrun(sizes, device)
        self.ranks = (self.topology.rank,)
        self._factory = distributed_factory(self.topology)
        self._groups = Groups.of(self.topology, self._factory)
        self._world = self._groups["world"]

    def communicators(self, rank: int) -> CommunicatorFactory:
        """torch.distributed collectives."""
        return self._factory

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Call it for this process's rank; the other processes call it for theirs."""
        return [function(self.topology.rank)]

    def agree(self, numbers: Sequence[Sequence[int]]) -> list[list[int]]:
        """As everywhere (collective), so that rounding can never part the ranks."""
        agreed: list[list[int]] = []
        for group, each in enumerate(numbers):
            mine = torch.tensor(list(each), dtype=torch.int64)
            root = self.result_rank(group)
            agreed.append(self._world.broadcast(mine, root).tolist() if each else [])
        return agreed

    def results(self, tensors: Sequence[Tensors]) -> list[Tensors]:
        """From the last stage, then from the rank of each group with this rank's number in its own."""
        (mine,) = tensors
        mine = spread(self._groups["pp"], mine, self.topology.pp - 1, self._device)
        dp = self._groups["attn_dp"]
        return [spread(dp, mine, group, self._device) for group in range(dp.size)]

    def of_rank(self, rank: int, make: Callable[[], Tensor]) -> Tensor:
        """One rank's tensor, broadcast (collective)."""
        own = make().contiguous() if rank in self.ranks else None
        (found,) = spread(self._world, [own], rank, self._device)
        assert found is not None
        return found

    def least(self, number: int) -> int:
        """The smallest of all processes' numbers (collective)."""
        mine = torch.tensor([number], dtype=torch.int64)
        return int(self._world.all_gather(mine, 0).min())

    @property
    def processes(self) -> int:
        """One for each rank."""
        return self.topology.world_size

    def everyones(self, texts: Sequence[str]) -> list[list[str]]:
        """Each process's texts, by process, on every process (collective)."""
        mine = torch.frombuffer(bytearray(json.dumps(list(texts)).encode()), dtype=torch.uint8)
        sizes = self._world.all_gather(torch.tensor([mine.numel()]), 0)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: mine.numel()] = mine
        rows = self._world.all_gather(padded[None], 0)
        return [
            json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)
        ]

    @property
    def ranks_in_memory(self) -> int:
        """Processes on this host; each holds one rank. A GPU is one process's own."""
        return 1 if self._device.type == "cuda" else local_process_count()


def make_executor(sizes: Topology, device: torch.device) -> Executor:
    """One rank, or torchrun's processes where it started this one, or a simulation of all."""
    if sizes.world_size == 1:
        return SingleExecutor(sizes)
    return ProcessExecutor(sizes, device) if started_by_torchrun() else SimulatedExecutor(sizes)
