"""Exit codes, messages, and what a light command may import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from typing import Any

import pytest
from cli.conftest import Run

import archzoo.cli.generate as command
from archzoo import __version__
from archzoo.errors import InputError

GENERATE = ("generate", "nowhere", "--token-ids", "1")


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a function in the place of what generate does."""

    def replace(function: Any) -> None:
        monkeypatch.setattr(command, "run", function)

    return replace


def raising(error: BaseException) -> Any:
    def run(*_: object, **_options: object) -> None:
        raise error

    return run


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"archzoo {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["list", "--no-such-option"],
        ["list", "--state", "happy"],
        ["why"],
        ["doctor", "--probe-timeout", "0"],
        ["doctor", "--probe-timeout", "nan"],
        ["generate"],
        ["verify"],
        ["bench"],
        ["preflight"],
        ["preflight", "nowhere", "--tp", "0"],
    ],
    ids=" ".join,
)
def test_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ["list", "why", "doctor", "generate", "verify", "bench"])
def test_every_command_has_help(run: Run, name: str) -> None:
    assert name in run("--help").out
    assert run(name, "--help").code == 0


@pytest.mark.parametrize("command", [["list"], ["why", "LlamaForCausalLM"], ["doctor"]])
def test_light_commands_and_python_m_load_nothing_heavy(command: list[str]) -> None:
    script = (
        "import runpy, sys, json\n"
        f"sys.argv = {['archzoo', *command]}\n"
        "try:\n"
        "    runpy.run_module('archzoo', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "heavy = {'torch', 'transformers', 'rich', 'typer', 'safetensors', 'numpy'}\n"
        "heavy |= {'archzoo_llama'}\n"
        "print(json.dumps([code, sorted(heavy & set(sys.modules))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    listing, last = done.stdout.rstrip().rsplit("\n", 1)
    assert "llama" in listing
    assert json.loads(last) == [0, []]


def test_an_error_is_its_message_and_its_notes(run: Run, body: Any) -> None:
    error = InputError("7 is [red]too much[/nope]; use 6")
    error.add_note("while counting")
    body(raising(error))
    assert run(*GENERATE) == (1, "", "error: 7 is [red]too much[/nope]; use 6\n  while counting\n")


def test_an_unexpected_error_says_how_to_see_more(run: Run, body: Any) -> None:
    body(raising(ZeroDivisionError("by zero\nsecond line")))
    done = run(*GENERATE)
    assert done.code == 1
    assert done.err.startswith("error: unexpected ZeroDivisionError: by zero\n")
    assert "--debug" in done.err and "second line" not in done.err and "Traceback" not in done.err


def test_debug_shows_the_traceback(run: Run, body: Any) -> None:
    body(raising(InputError("no")))
    done = run(*GENERATE, "--debug")
    assert done.code == 1
    assert "Traceback" in done.err and done.err.endswith("error: no\n")


def test_ctrl_c_is_130_and_silent(run: Run, body: Any) -> None:
    body(raising(KeyboardInterrupt()))
    assert run(*GENERATE) == (130, "", "")


def test_ctrl_c_before_a_command_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archzoo.cli.app.app", raising(KeyboardInterrupt()))
    assert run("--version").code == 130
    monkeypatch.setattr("archzoo.cli.quick.run", raising(KeyboardInterrupt()))
    assert run("list").code == 130


def test_a_closed_pipe_is_no_defect(run: Run, body: Any) -> None:
    import errno

    body(raising(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    done = run(*GENERATE)
    assert done.code == 1 and done.err == ""


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_once(run: Run, body: Any) -> None:
    def warn(*_: object) -> None:
        for _at in range(2):
            warnings.warn("tied, and stored", stacklevel=1)
        warnings.warn("tied, and stored", stacklevel=2)
        warnings.warn("old name", DeprecationWarning, stacklevel=1)

    body(warn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert run(*GENERATE) == (0, "", "warning: tied, and stored\n")


@pytest.mark.filterwarnings("default")
def test_ranks_that_do_not_lead_show_errors_only(
    run: Run, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)

    def talk(_options: object, screen: Any) -> None:
        screen.show("shown")
        screen.write("written")
        screen.note("noted")
        warnings.warn("warned", stacklevel=1)
        raise InputError("failed")

    body(talk)
    assert run(*GENERATE) == (1, "", "error on rank 2: failed\n")


def test_a_long_error_is_not_cut_in_a_pipe(run: Run, body: Any) -> None:
    text = "word " * 100 + "end"
    body(raising(InputError(text)))
    assert run(*GENERATE).err == f"error: {text}\n"


def test_a_tokens_list_of_anything_else_is_usage(run: Run) -> None:
    for text in ("", ",", "1,x", "-1", "1.5", "٣", "9" * 40, "1;2"):
        done = run("generate", "x", f"--token-ids={text}")
        assert done.code == 2, text
        assert re.search("number", done.err), text
