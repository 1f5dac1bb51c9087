"""Start-up of one process per rank: what torchrun says, and the default process group.

The default process group is torch.distributed's own global; archzoo keeps nothing beside it.

A process must leave its gloo groups while Python still runs. Each group has worker threads, and a
worker lets the tensors of a collective go only after it has woken who waited for it. Where one of
them has had a Python object, that takes the GIL; while the interpreter is being torn down CPython
answers by ending the thread, which unwinds out of a destructor: ``terminate called without an active
exception``, exit code -6, in a program that had done all its work (pytorch/pytorch#179291). Leaving
joins the workers, so ``init_from_torchrun`` has it done at exit for programs that never call
``shutdown``. Not so with NCCL: leaving waits for what is under way on the device, and a rank that
ends with an error must not wait for peers that wait for it.
"""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import TopologyError
from .farewell import say_why_when_ended
from .topology import Topology

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits in a collective; loading may keep ranks apart for minutes."""


def started_by_torchrun() -> bool:
    """Whether this process was started as one rank of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def process_count() -> int:
    """How many processes torchrun started; 1 without it.

    Raises:
        TopologyError: WORLD_SIZE is no number.
    """
    return _number("WORLD_SIZE") if started_by_torchrun() else 1


def local_process_count() -> int:
    """How many processes torchrun started on this host; 1 without it."""
    return _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1


def local_device(kind: str) -> torch.device:
    """The device of this process on its host: ``cpu``, or ``cuda:LOCAL_RANK``.

    Raises:
        TopologyError: more processes than GPUs on this host, or LOCAL_RANK is no number.
    """
    if kind != "cuda":
        return torch.device(kind)
    local, gpus = _number("LOCAL_RANK"), torch.cuda.device_count()
    if local >= gpus:
        raise TopologyError(
            f"LOCAL_RANK={local} needs GPU {local}, this host shows {gpus}; start at most {gpus} "
            "processes on it (--nproc-per-node)"
        )
    return torch.device("cuda", local)


def init_from_torchrun(
    sizes: Topology, device: str | torch.device = "cpu", timeout: timedelta = TIMEOUT
) -> Topology:
    """Join the process group that torchrun describes, unless one is there already.

    A gloo group made here is left at exit, if ``shutdown`` has not been called by then. Where the
    program does not handle SIGTERM itself, a rank that the launcher ends says so.

    Args:
        sizes: the topology wanted; its rank is not looked at.
        device: where the model will run: gloo serves CPU tensors, NCCL CUDA tensors.
        timeout: how long a rank waits for the others in one collective.

    Returns:
        sizes, seen from this process's rank.

    Raises:
        TopologyError: not started by torchrun, or another number of processes.
    """
    if dist.is_initialized():
        _check_world(dist.get_world_size(), sizes)
        return sizes.at(dist.get_rank())
    if not started_by_torchrun():
        raise TopologyError(
            f"{sizes.world_size} ranks as processes need RANK, WORLD_SIZE and MASTER_ADDR in the "
            f"environment; start with torchrun --nproc-per-node {sizes.world_size}"
        )
    _check_world(_number("WORLD_SIZE"), sizes)
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(local_device(kind))
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout)
    if kind != "cuda":
        atexit.register(shutdown)
    say_why_when_ended(dist.get_rank())
    return sizes.at(dist.get_rank())


def shutdown() -> None:
    """Leave the process group, if there is one, and every group inside it.

    Waits until their worker threads have ended; a collective that is under way ends first.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_world(processes: int, sizes: Topology) -> None:
    if processes != sizes.world_size:
        raise TopologyError(
            f"{processes} processes were started (WORLD_SIZE), the topology needs tp={sizes.tp} x "
            f"pp={sizes.pp} = {sizes.world_size}; start with torchrun --nproc-per-node "
            f"{sizes.world_size}, or change tp or pp"
        )


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise TopologyError(
            f"environment variable {variable}={text!r} must be a number; start with torchrun"
        )
    return int(text)
