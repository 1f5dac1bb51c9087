"""Jobs of several processes: ranks alone, and torchrun agents as on several hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

HANGING = 900
"""Seconds after which a process counts as hanging; on a slow and busy machine some take a minute."""


class Ended(NamedTuple):
    """How one process ended."""

    code: int
    output: str


def run_ranks(script: str, folder: Path, world: int, timeout: float = HANGING) -> list[Ended]:
    """Run ``script folder`` as every rank of one host, and wait for all of them.

    Args:
        script: a file that may import what tests import.
        folder: its argument.
        world: how many ranks.
        timeout: seconds until a rank counts as hanging, which fails the test.
    """
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, script, str(folder)]
    store = new_store()
    ranks = start_ranks(command, store.port, world, stderr=subprocess.STDOUT, PYTHONPATH=path)
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [Ended(process.returncode, out) for process, out in zip(ranks, outputs, strict=True)]


def new_store() -> dist.TCPStore:  # pyright: ignore[reportPrivateImportUsage]
    """A store that processes meet at, on a port that is free for certain: it is held from here on."""
    # documented by torch, yet not marked as exported
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )


def start_ranks(
    command: Sequence[str], port: int, world: int, *, stderr: int, **variables: str
) -> list[subprocess.Popen[str]]:
    """Start every rank of one host in torchrun's environment; like torchrun, we hold the store.

    Args:
        command: what each runs.
        port: of the store.
        world: how many ranks.
        stderr: where its stderr goes; stdout goes to a pipe.
        variables: of the environment.
    """
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(world),
        **variables,
    }
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        for rank in range(world)
    ]


def run_agents(
    folder: Path, arguments: Sequence[str], *, agents: int, per_agent: int, timeout: float = HANGING
) -> list[Ended]:
    """Start the agents on this host, wait for all of them. Which has rank 0 is theirs to agree on.

    Args:
        folder: where output is kept.
        arguments: what every rank runs: a script and its arguments, or ``-m`` and a module.
        agents: how many.
        per_agent: ranks of each.
        timeout: seconds until the job counts as hanging, which fails the test.
    """
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    store, running = new_store(), []
    for node in range(agents):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}"]
        command += [f"--nproc-per-node={per_agent}", "--local-addr=127.0.0.1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{store.port}"]
        command += ["--rdzv-conf=is_host=false", *arguments]
        with (folder / f"agent-{node}").open("w") as file:
            running.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        codes = [agent.wait(timeout) for agent in running]
    finally:
        for agent in running:
            with suppress(ProcessLookupError):  # what a hanging agent has started ends with it
                os.killpg(agent.pid, signal.SIGKILL)
    return [Ended(code, (folder / f"agent-{node}").read_text()) for node, code in enumerate(codes)]
