"""What a process takes of torchrun's variables, and of those that other launchers leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from agents import HANGING

from archzoo.errors import CollectiveError, TopologyError
from archzoo.parallel import Topology, launch
from archzoo.parallel.launch import (
    init_from_torchrun,
    is_follower,
    local_device,
    started_by_torchrun,
)
from tiny import tiny_llama

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def environment(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, text in {**TORCHRUN, "LOCAL_RANK": "0", **changes}.items():
        if text is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, text)


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_started_by_torchrun_needs_all_three(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    environment(monkeypatch)
    assert started_by_torchrun()
    environment(monkeypatch, **{missing: None})
    assert not started_by_torchrun()
    with pytest.raises(TopologyError, match="torchrun --nproc-per-node 6"):
        init_from_torchrun(Topology(tp=3, pp=2))


def test_world_size_is_checked_before_anything_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    with pytest.raises(TopologyError, match=r"2 processes.*tp=3 x pp=1 = 3.*nproc-per-node 3"):
        init_from_torchrun(Topology(tp=3))
    environment(monkeypatch, WORLD_SIZE="two")
    with pytest.raises(TopologyError, match="WORLD_SIZE='two' must be a number"):
        init_from_torchrun(Topology(tp=3))


def test_local_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    environment(monkeypatch, LOCAL_RANK="1")
    assert local_device("cuda") == torch.device("cuda", 1)
    environment(monkeypatch, LOCAL_RANK="2")
    with pytest.raises(TopologyError, match="LOCAL_RANK=2 needs GPU 2, this host shows 2"):
        local_device("cuda")
    environment(monkeypatch, LOCAL_RANK=None)
    with pytest.raises(TopologyError, match="LOCAL_RANK='' must be a number"):
        local_device("cuda")


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("RANK", "abc", "from 0 to 1"),
        ("RANK", "2", "from 0 to 1"),
        ("RANK", "-1", "from 0 to 1"),
        ("RANK", "", "from 0 to 1"),
        ("WORLD_SIZE", "0", "of at least 1"),
        ("WORLD_SIZE", "9" * 5000, "of at least 1"),
        ("WORLD_SIZE", "\u0662", "of at least 1"),
        ("MASTER_PORT", None, "from 0 to 65535"),
        ("MASTER_PORT", "http", "from 0 to 65535"),
        ("MASTER_PORT", "70000", "from 0 to 65535"),
    ],
)
def test_what_cannot_be_torchrun_s_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str | None, wanted: str
) -> None:
    environment(monkeypatch, **{variable: text})
    named = f"{variable}={text or ''!r} must be a number {wanted}.*unset RANK"
    with pytest.raises(TopologyError, match=named):
        init_from_torchrun(Topology(tp=2))


@pytest.mark.parametrize(
    ("ranks", "changes", "follows"),
    [
        (None, {"RANK": "1"}, True),
        (2, {"RANK": "1"}, True),
        (1, {"RANK": "1"}, False),
        (None, {"RANK": "0"}, False),
        (None, {"RANK": "1", "WORLD_SIZE": None}, False),
        (2, {"RANK": "1", "MASTER_ADDR": None}, False),
        (None, {"RANK": "1", "WORLD_SIZE": "1"}, False),
        (None, {"RANK": None, "LOCAL_RANK": "1"}, False),
    ],
    ids=str,
)
def test_only_ranks_of_one_job_follow(
    monkeypatch: pytest.MonkeyPatch,
    ranks: int | None,
    changes: dict[str, str | None],
    follows: bool,
) -> None:
    environment(monkeypatch, **changes)
    assert is_follower(ranks) is follows


def test_who_waits_says_for_whom_and_who_gives_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said, heard = list[str](), threading.Event()

    def waits(*_: Any, **__: Any) -> None:
        assert heard.wait(HANGING)
        raise RuntimeError("wait timeout after 600000ms\nand a long trace")

    environment(monkeypatch, RANK="1", WORLD_SIZE="6", MASTER_ADDR="far", MASTER_PORT="29500")
    monkeypatch.setattr(launch, "PATIENCE", timedelta())
    monkeypatch.setattr(launch, "tell", lambda text: (said.append(text), heard.set()))
    monkeypatch.setattr(dist, "init_process_group", waits)
    whom = "ranks 0, 2-5 of 6 at far:29500"
    with pytest.raises(
        CollectiveError, match=f"rank 1 did not meet {whom}: wait timeout"
    ) as caught:
        init_from_torchrun(Topology(tp=6))
    assert "long trace" not in str(caught.value) and "unset RANK" in str(caught.value)
    assert len(said) == 1 and said[0].startswith(f"rank 1 waits for {whom}; ")


def test_who_meets_the_others_at_once_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []

    def meets(*_: Any, **__: Any) -> None:
        timers.extend(each for each in threading.enumerate() if isinstance(each, threading.Timer))
        raise ValueError("stop here")

    environment(monkeypatch)
    monkeypatch.setattr(launch, "PATIENCE", timedelta(seconds=HANGING))
    monkeypatch.setattr(dist, "init_process_group", meets)
    with pytest.raises(CollectiveError, match="did not meet rank 1 of 2 at 127.0.0.1:1: stop here"):
        init_from_torchrun(Topology(tp=2))
    (timer,) = timers
    timer.join(HANGING)
    assert timer.finished.is_set()


def test_a_process_without_its_peers_is_heard(tmp_path: Path) -> None:
    """As in a pod of somebody else's job: rank 0 holds the store, and nobody comes."""
    path, _ = tiny_llama(tmp_path, num_attention_heads=4, num_key_value_heads=2)
    script = "import sys, archzoo; archzoo.load(sys.argv[1], tp=2)"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, **TORCHRUN, "MASTER_PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("archzoo: "))
        process.kill()
    assert said.startswith("archzoo: rank 0 waits for rank 1 of 2 at 127.0.0.1:0; start them")
