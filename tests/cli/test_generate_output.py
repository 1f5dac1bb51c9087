"""generate --output: refused before the work, and nothing is touched in vain."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run

import archzoo

LOAD = "archzoo.cli.generate.load"


def test_a_result_that_cannot_be_written_is_refused_before_the_work(
    run: Run, llama: Path, forbid: Callable[[str], None], tmp_path: Path
) -> None:
    forbid(LOAD)
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "gone" / "out.json")
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    unwritable = (dangling, loop, tmp_path / ("n" * 300), Path("/proc/out.json"), tmp_path)
    for file in unwritable:
        done = run("generate", llama, "--token-ids", "1", "--output", file)
        assert done.code == 2 and "cannot write" in done.err, file
    assert sorted(tmp_path.iterdir()) == [dangling, loop]


def test_a_command_that_fails_leaves_the_output_as_it_was(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("kept")
    for file in (old, new):
        assert run("generate", llama, "--token-ids", "500", "--output", file).code == 1
    assert old.read_text() == "kept" and not new.exists()


def test_the_output_may_be_a_link(run: Run, llama: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    base = ("generate", llama, "--token-ids", "9", "--max-new-tokens", 1, "--output")
    assert run(*base, link).code == 0
    assert link.is_symlink() and json.loads((tmp_path / "target.json").read_text())["token_ids"]


def test_a_pipe_for_the_output_is_opened_once(
    run: Run, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader would take a first closing for the end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    poll, before = select.poll(), []
    poll.register(reader)

    def load(*arguments: Any, **options: Any) -> archzoo.Model:
        before.extend(poll.poll(0))  # a hang-up, if somebody has opened and closed it
        return archzoo.load(*arguments, **options)

    monkeypatch.setattr(LOAD, load)
    base = ("generate", llama, "--token-ids", "9", "--max-new-tokens", 1, "--output")
    try:
        assert run(*base, pipe).code == 0
        assert before == []
        assert json.loads(os.read(reader, 65536))["token_ids"]
    finally:
        os.close(reader)
