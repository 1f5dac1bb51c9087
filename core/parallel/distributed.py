"""DistributedCommunicator: collectives over torch.distributed, one rank per process.

The functional collective operators are used directly: they take the group by name, so that a
communicator is plain data and a compiled step traces through them, and their spelling is the same
in all supported torch versions (the Python wrappers around them are renamed between versions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from ..errors import CollectiveError, TopologyError
from .group import CommunicatorFactory
from .meeting import check_divisible, check_peer, check_splits, normal_dim
from .topology import Topology

_MESHES = {
    None: ("pp", "tp"),
    "attn_dp": ("pp", "attn_dp", "attn_tp"),
    "ep": ("pp", "ep", "moe_tp"),
}
"""Axes of the device meshes, outermost first; those that split tp further, by the size that does."""


@dataclass(frozen=True)
class DistributedCommunicator:
    """Collectives of this process over one group.

    Sums are taken in the tensors' own dtype; their order is the backend's. No gradients.

    Args:
        group: name for messages, ``tp``.
        ranks: global ranks, in group order.
        rank: index of this process in ranks.
        handle: name under which torch.distributed knows the group.
    """

    group: str
    ranks: tuple[int, ...]
    rank: int
    handle: str

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the group; the same bits on every rank."""
        ops = torch.ops._c10d_functional
        with self._named("all_reduce"):
            return _wait(ops.all_reduce(x.detach().contiguous(), "sum", self.handle))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """All ranks' x along dim, in group order."""
        dim = normal_dim(x, dim, "all_gather", self.group)
        ops, size = torch.ops._c10d_functional, len(self.ranks)
        with self._named("all_gather"):
            flat = x.detach().contiguous()
            stacked = _wait(ops.all_gather_into_tensor(flat, size, self.handle))
        if dim == 0:
            return stacked
        whole = (*x.shape[:dim], size * x.shape[dim], *x.shape[dim + 1 :])
        return stacked.view(size, *x.shape).movedim(0, dim).reshape(whole)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part, along dim, of the sum."""
        dim = normal_dim(x, dim, "reduce_scatter", self.group)
        ops, size = torch.ops._c10d_functional, len(self.ranks)
        check_divisible(x, dim, size, self.group)
        parts = x.detach()
        if dim:
            parts = torch.cat(parts.chunk(size, dim))
        with self._named("reduce_scatter"):
            return _wait(ops.reduce_scatter_tensor(parts.contiguous(), "sum", size, self.handle))

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows for each rank, against rows from each."""
        check_splits(x, send, receive, len(self.ranks), self.group)
        ops = torch.ops._c10d_functional
        with self._named("all_to_all"):
            flat = x.detach().contiguous()
            return _wait(ops.all_to_all_single(flat, list(receive), list(send), self.handle))

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """The x of rank src of the group."""
        check_peer("broadcast", src, self.ranks, self.group)
        ops = torch.ops._c10d_functional
        with self._named("broadcast"):
            return _wait(ops.broadcast(x.detach().contiguous(), src, self.handle))

    def send(self, x: Tensor, dst: int) -> None:
        """Hand x to rank dst of the group."""
        self._check_other("send", dst)
        with self._named("send"):
            dist.send(x.detach().contiguous(), group=self._process_group(), group_dst=dst)

    def recv(self, like: Tensor, src: int) -> Tensor:
        """What rank src sends; like gives shape and dtype, which must be the sender's."""
        self._check_other("recv", src)
        result = torch.empty_like(like.detach(), memory_format=torch.contiguous_format)
        with self._named("recv"):
            dist.recv(result, group=self._process_group(), group_src=src)
        return result

    def _check_other(self, kind: str, peer: int) -> None:
        check_peer(kind, peer, self.ranks, self.group, self.rank)

    def _process_group(self) -> dist.ProcessGroup:
        c10d: Any = dist.distributed_c10d  # which exports no look-up by name
        group: dist.ProcessGroup = c10d._resolve_process_group(self.handle)
        return group

    @contextmanager
    def _named(self, kind: str) -> Iterator[None]:
        """Say which collective failed: the backends only speak of sockets and peers."""
        try:
            yield
        except RuntimeError as error:
            raise CollectiveError(
                f"{kind} over group {self.group!r} of ranks {self.ranks} failed on rank "
                f"{self.ranks[self.rank]}: {error}; if a peer ended or is late, its own output "
                "says why"
            ) from error


def distributed_factory(topology: Topology) -> CommunicatorFactory:
    """Create every process group of the topology; collective over all ranks.

    Groups of equal ranks share one process group. Which processes meet is a ``DeviceMesh`` over the
    topology's axes.

    Returns:
        What gives ``topology.rank`` its communicators.

    Raises:
        TopologyError: the process group is missing, or is not this topology's world.
    """
    if not dist.is_initialized():
        raise TopologyError(
            "no process group: start with torchrun and call init_from_torchrun first, or simulate "
            "the ranks in one process"
        )
    found = (dist.get_rank(), dist.get_world_size())
    if found != (topology.rank, topology.world_size):
        raise TopologyError(
            f"this process is rank {found[0]} of {found[1]}, the topology says rank "
            f"{topology.rank} of {topology.world_size} (tp={topology.tp} x pp={topology.pp})"
        )
    handles = _handles(topology)

    def make(name: str, ranks: tuple[int, ...], index: int) -> DistributedCommunicator:
        handle = handles.get(ranks)
        if handle is None or ranks[index] != topology.rank:
            raise TopologyError(
                f"group {name!r} of ranks {ranks}, index {index}, is not one of rank "
                f"{topology.rank} in this topology"
            )
        return DistributedCommunicator(name, ranks, index, handle)

    return make


def _handles(topology: Topology) -> dict[tuple[int, ...], str]:
    """torch.distributed's name of every group of this rank, by its ranks; DeviceMesh makes them."""
    handles = {tuple(range(topology.world_size)): dist.group.WORLD}
    for size, axes in _MESHES.items():
        if size is not None and getattr(topology, size) == 1:
            continue
        sizes = tuple(getattr(topology, axis) for axis in axes)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=axes)  # the default group's backends
        for axis in axes:
            handles.setdefault(topology.ranks_of(axis), mesh.get_group(axis))
    return {ranks: str(group.group_name) for ranks, group in handles.items() if group is not None}


def _wait(x: Tensor) -> Tensor:
    done: Tensor = torch.ops._c10d_functional.wait_tensor(x)
    return done
