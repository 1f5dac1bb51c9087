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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import CollectiveError, TopologyError
from .farewell import say_why_when_ended, tell
from .meeting import name_ranks
from .topology import Topology

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits in a collective; loading may keep ranks apart for minutes."""

PATIENCE = timedelta(seconds=2)
"""How long a rank waits for the others in silence: the variables may be another launcher's."""

_WITHOUT = (
    "to simulate all ranks in one process, unset RANK, WORLD_SIZE and MASTER_ADDR, "
    "which another launcher may have left"
)


def started_by_torchrun() -> bool:
    """Whether this process was started as a rank of a job, as its variables say.

    One or two of them alone are what other launchers, pods and shells leave behind.
    """
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def process_count() -> int:
    """How many processes torchrun started; 1 without it.

    Raises:
        TopologyError: WORLD_SIZE is no number of processes.
    """
    return _number("WORLD_SIZE", 1) if started_by_torchrun() else 1


def is_follower(ranks: int | None) -> bool:
    """Whether this process runs a model of so many ranks under the lead of another one.

    Args:
        ranks: None for as many as torchrun started. A model of one rank runs by itself in every
            process, whatever its variables say.
    """
    if ranks == 1 or not started_by_torchrun():
        return False
    return os.environ["RANK"] != "0" and os.environ["WORLD_SIZE"] != "1"


def local_process_count() -> int:
    """How many processes torchrun started on this host; 1 without it."""
    return _number("LOCAL_WORLD_SIZE", 1) if "LOCAL_WORLD_SIZE" in os.environ else 1


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
    program does not handle SIGTERM itself, a rank that the launcher ends says so. Who waits longer
    than ``PATIENCE`` for the others says for whom, on stderr.

    Args:
        sizes: the topology wanted; its rank is not looked at.
        device: where the model will run: gloo serves CPU tensors, NCCL CUDA tensors.
        timeout: how long a rank waits for the others in one collective.

    Returns:
        sizes, seen from this process's rank.

    Raises:
        TopologyError: not started by torchrun, another number of processes, or variables that
            cannot be torchrun's.
        CollectiveError: the others do not come.
    """
    if dist.is_initialized():
        _check_world(dist.get_world_size(), sizes)
        return sizes.at(dist.get_rank())
    if not started_by_torchrun():
        raise TopologyError(
            f"{sizes.world_size} ranks as processes need RANK, WORLD_SIZE and MASTER_ADDR in the "
            f"environment; start with torchrun --nproc-per-node {sizes.world_size}"
        )
    _check_world(_number("WORLD_SIZE", 1), sizes)
    rank = _number("RANK", 0, sizes.world_size - 1)
    _number("MASTER_PORT", 0, 65535)
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(local_device(kind))
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    with _meeting(rank, sizes.world_size):
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
            f"{sizes.world_size}, or change tp or pp; {_WITHOUT}"
        )


@contextmanager
def _meeting(rank: int, world: int) -> Iterator[None]:
    """Say for whom this rank waits, when it has waited a while, and when they do not come."""
    others = name_ranks([each for each in range(world) if each != rank])
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    whom = f"{others} of {world} at {place}"
    text = f"rank {rank} waits for {whom}; start them, or start with torchrun; {_WITHOUT}"
    timer = threading.Timer(PATIENCE.total_seconds(), tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    except (ValueError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise CollectiveError(
            f"rank {rank} did not meet {whom}: {why}; start with torchrun; {_WITHOUT}"
        ) from error
    finally:
        timer.cancel()


def _number(variable: str, least: int = 0, most: int | None = None) -> int:
    """An environment variable of torchrun's.

    Raises:
        TopologyError: it is no whole number, or not within its range.
    """
    text = os.environ.get(variable, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if number < least or (most is not None and number > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise TopologyError(
            f"environment variable {variable}={text!r} must be a number {span}; start with "
            f"torchrun; {_WITHOUT}"
        )
    return number
