"""A rank that dies takes the job down, soon and with a word from every survivor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import HANGING, run_agents

from archzoo.parallel.farewell import EXIT_CODE, say_why_when_ended
from tiny import tiny_llama

DYING = 3
SCRIPT = f"""
import os, signal, sys, time
import torch, archzoo
rank = int(os.environ["RANK"])
model = archzoo.load(sys.argv[1], dtype=torch.float32, tp=4)
for turn in range(1000):
    model.generate([5, 6, 7], max_new_tokens=4, ignore_eos=True)
    if turn == 2 and rank == {DYING}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_survivor_says_why_before_any_timeout(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [str(tmp_path / "script.py"), str(path)]
    ended = run_agents(tmp_path, arguments, agents=2, per_agent=2)
    assert all(agent.code for agent in ended)
    output = "".join(agent.output for agent in ended)
    assert "imed out" not in output, "a survivor waited as long as a collective may take"
    for rank in range(DYING):
        named = rf"CollectiveError: .* failed on rank {rank}: |archzoo: rank {rank} was ended"
        assert re.search(named, output), f"rank {rank} said nothing:\n{output[-3000:]}"


WAITING = """
import os, sys
from archzoo.parallel.farewell import say_why_when_ended
watched = say_why_when_ended(7)
reading, writing = os.pipe()
print("ready", watched, flush=True)
BODY
"""


def end(body: str, *signals: int) -> subprocess.CompletedProcess[str]:
    """Run a script that waits, send it signals."""
    code = WAITING.replace("BODY", body)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        for number in signals:
            process.send_signal(number)
        out, err = process.communicate(timeout=HANGING)
    return subprocess.CompletedProcess([], process.returncode, ready + out, err)


def test_a_rank_inside_c_code_says_it(tmp_path: Path) -> None:
    blocked = "import ctypes\nctypes.CDLL(None).read(reading, ctypes.create_string_buffer(1), 1)\n"
    # read() is started again after a signal, as a collective is: no Python handler ever runs.
    done = end(f"{blocked}\n" * 3, signal.SIGTERM)
    assert done.returncode == EXIT_CODE and "ready True" in done.stdout
    assert "rank 7 was ended by SIGTERM" in done.stderr


def test_other_signals_keep_their_meaning(tmp_path: Path) -> None:
    body = (
        "import signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('mine', flush=True) or sys.exit(5))\n"
        "print('set', flush=True)\nsignal.pause()\n"
    )
    done = end("import time\ntime.sleep(9999)", signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr and "SIGTERM" not in done.stderr
    code = WAITING.replace("BODY", body)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)][1] == "set\n"
        process.send_signal(signal.SIGUSR1)
        out, _ = process.communicate(timeout=HANGING)
    assert out == "mine\n" and process.returncode == 5


def test_a_program_that_handles_sigterm_keeps_its_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    try:
        assert not say_why_when_ended(0)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_that_watches_signals_keeps_its_pipe() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        assert not say_why_when_ended(0)
        assert signal.set_wakeup_fd(before) == writing
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
