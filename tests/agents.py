"""Jobs of several processes, started as on several hosts: one torchrun agent for each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How one agent ended."""

    code: int
    output: str


def run_agents(
    folder: Path, arguments: Sequence[str], *, agents: int, per_agent: int, timeout: float = 120
) -> list[Ended]:
    """Start the agents on this host, wait for all of them.

    Args:
        folder: where output is kept.
        arguments: what every rank runs: a script and its arguments, or ``-m`` and a module.
        agents: how many.
        per_agent: ranks of each.
        timeout: seconds until the job counts as hanging, which fails the test.
    """
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    environment["OMP_NUM_THREADS"] = "1"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for node in range(agents):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}"]
        command += [f"--node-rank={node}", f"--nproc-per-node={per_agent}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={port}", *arguments]
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
