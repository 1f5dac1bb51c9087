"""A program that never calls shutdown leaves its gloo groups while Python still runs.

Run as a script, this file is one of two ranks. Rank 0 ends with a collective under way, the longest
that the tail of a collective can be; its peer joins a moment later.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from agents import Ended, run_ranks

from archzoo.parallel import Groups, Topology
from archzoo.parallel.distributed import distributed_factory
from archzoo.parallel.launch import init_from_torchrun

TASKS = Path("/proc/self/task")


def gloo_threads() -> list[str]:
    """Of this process; none where nothing tells."""
    tasks = TASKS.iterdir() if TASKS.exists() else ()
    names = (Path(task, "comm").read_text().strip() for task in tasks)
    return [name for name in names if "gloo" in name]


def last_look(folder: Path, rank: str) -> None:
    """What is left when everything that is done at exit is done."""
    look = {"left": not dist.is_initialized(), "threads": gloo_threads()}
    (folder / f"{rank}.json").write_text(json.dumps(look))


def run_rank(folder: Path) -> None:
    atexit.register(last_look, folder, os.environ["RANK"])  # the first is called last
    topology = init_from_torchrun(Topology(tp=2))
    tp = Groups.of(topology, distributed_factory(topology))["tp"]
    tp.all_reduce(torch.ones(4))
    assert len(gloo_threads()) > 2 or not TASKS.exists(), "nothing would be proved"
    if topology.rank == 0:
        dist.all_reduce(torch.ones(4), async_op=True)
        return
    time.sleep(0.5)
    dist.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Ended, dict[str, Any]]]:
    """How each rank ended, and its last look."""
    folder = tmp_path_factory.mktemp("leaving")
    ended = run_ranks(__file__, folder, 2)
    looks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return list(zip(ended, looks, strict=True))


@pytest.mark.parametrize("rank", [0, 1])
def test_no_worker_thread_outlives_the_interpreter(ends: Any, rank: int) -> None:
    assert ends[rank][1] == {"left": True, "threads": []}


def test_a_collective_under_way_does_not_abort_the_process(ends: Any) -> None:
    assert [ended.code for ended, _ in ends] == [0, 0], ends


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
