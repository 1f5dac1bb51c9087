"""generate: what it prints is what the model says, and everything else is refused early."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run, as_processes

import archzoo
from archzoo.errors import InputError
from archzoo.runtime import StreamChunk, memory
from archzoo.runtime.tokenizer import TransformersTokenizer

LOAD = "archzoo.cli.generate.load"


@pytest.fixture(scope="module")
def model(chatty: Path) -> archzoo.Model:
    return archzoo.load(chatty)


def pipe(monkeypatch: pytest.MonkeyPatch, text: str, terminal: bool = False) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]  # a terminal, for this test
    monkeypatch.setattr(sys, "stdin", stdin)


def test_ids_without_a_tokenizer_give_ids(run: Run, llama: Path) -> None:
    want = archzoo.load(llama).generate([5, 6, 7], max_new_tokens=6, ignore_eos=True).token_ids
    done = run("generate", llama, "--token-ids", "5,6 7", "--max-new-tokens", 6, "--ignore-eos")
    assert done.code == 0
    assert done.out == ",".join(map(str, want)) + "\n"
    assert done.err.startswith("6 tokens · ") and "tokens/s" in done.err
    assert "end: length" in done.err


@pytest.mark.parametrize("flag", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_a_text_is_continued(
    run: Run, chatty: Path, model: archzoo.Model, tmp_path: Path, flag: list[str]
) -> None:
    want = model.generate("hello", max_new_tokens=9)
    file = tmp_path / "out.json"
    done = run(
        "generate", chatty, "--prompt", "hello", "--max-new-tokens", 9, "--output", file, *flag
    )
    assert done.code == 0
    assert done.out == want.text.rstrip("\n") + "\n"
    written = json.loads(file.read_text())
    timing = written.pop("timing")
    assert written == {
        "prompt_token_ids": model.tokenizer.encode("hello"),
        "token_ids": want.token_ids,
        "text": want.text,
        "finish_reason": want.finish_reason,
    }
    assert 0 < timing["first_token_seconds"] < timing["total_seconds"]
    between = timing["total_seconds"] - timing["first_token_seconds"]
    rate = (len(want.token_ids) - 1) / between
    assert timing["decode_tokens_per_second"] == pytest.approx(rate)
    assert timing["load_seconds"] > 0


def test_chat_and_system(run: Run, chatty: Path, model: archzoo.Model, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ("--max-new-tokens", 5, "--output", file)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    for extra, conversation in (([], messages[1:]), (["--system", "be brief"], messages)):
        assert run("generate", chatty, "--chat", "--prompt", "hi", *options, *extra).code == 0
        want = model.generate(conversation, max_new_tokens=5)
        written = json.loads(file.read_text())
        assert written["prompt_token_ids"] == want.prompt_token_ids
        assert written["token_ids"] == want.token_ids


def test_a_chat_ends_at_the_tokenizers_end_token(
    run: Run, chatty: Path, model: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = [{"role": "user", "content": "hi"}]
    free = model.generate(message, max_new_tokens=8, ignore_eos=True).token_ids
    ends = property(lambda self: frozenset({free[3]}))
    monkeypatch.setattr(TransformersTokenizer, "eos_token_ids", ends)
    done = run("generate", chatty, "--chat", "--prompt", "hi", "--max-new-tokens", 8)
    count = free.index(free[3]) + 1
    assert done.err.startswith(f"{count} token") and "end: stop" in done.err
    on = run("generate", chatty, "--chat", "--prompt", "hi", "--max-new-tokens", 8, "--ignore-eos")
    assert on.err.startswith("8 tokens") and "end: length" in on.err


def test_a_text_ends_at_the_tokenizers_end_token(
    run: Run, chatty: Path, model: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside end tokens that the config names; ids do not end at it."""
    free = model.generate("hi", max_new_tokens=8, ignore_eos=True).token_ids
    ends = property(lambda self: frozenset({free[3]}))
    monkeypatch.setattr(TransformersTokenizer, "eos_token_ids", ends)
    base = ("generate", chatty, "--max-new-tokens", 8)
    done = run(*base, "--prompt", "hi")
    count = free.index(free[3]) + 1
    assert done.err.startswith(f"{count} token") and "end: stop" in done.err
    ids = ",".join(map(str, model.tokenizer.encode("hi")))
    for options in (("--prompt", "hi", "--ignore-eos"), ("--token-ids", ids)):
        done = run(*base, *options)
        assert done.err.startswith("8 tokens") and "end: length" in done.err


def test_the_model_s_own_end_id_may_lie_outside_its_vocabulary(
    run: Run, chatty: Path, model: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a tokenizer with more tokens than the checkpoint; a caller's own may not."""
    outside = model.config.vocab_size
    ends = property(lambda self: frozenset({outside}))
    monkeypatch.setattr(TransformersTokenizer, "eos_token_ids", ends)
    assert run("generate", chatty, "--prompt", "hi", "--max-new-tokens", 2).code == 0
    with pytest.raises(InputError, match=f"stop_token_ids={outside}"):
        model.generate("hi", stop_token_ids=[outside])


def test_a_seed_out_of_range_is_named(run: Run, llama: Path) -> None:
    done = run("generate", llama, "--token-ids", "9", "--seed", 2**63)
    assert done.code == 1 and f"seed={2**63} must be an integer in 0…{2**63 - 1}" in done.err
    done = run("verify", llama, "--seed", 2**63)
    assert done.code == 2 and "--seed" in done.err


def test_the_prompt_comes_through_a_pipe(
    run: Run, chatty: Path, model: archzoo.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    pipe(monkeypatch, "two\nlines\n")
    assert run("generate", chatty, "--max-new-tokens", 2, "--output", file).code == 0
    written = json.loads(file.read_text())
    assert written["prompt_token_ids"] == model.tokenizer.encode("two\nlines")


@pytest.mark.parametrize(
    ("text", "terminal", "processes", "says"),
    [
        ("", False, "1", "--prompt"),
        ("\n", False, "1", "--prompt"),
        ("typed", True, "1", "--prompt"),
        ("text", False, "3", "several processes"),
    ],
)
def test_no_prompt_is_usage(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    terminal: bool,
    processes: str,
    says: str,
) -> None:
    pipe(monkeypatch, text, terminal)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", processes), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    done = run("generate", "nowhere")
    assert done.code == 2 and says in done.err


POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}
ONE = ["--token-ids", "9,8", "--max-new-tokens", "3", "--ignore-eos"]


@pytest.mark.parametrize(
    ("variables", "command", "options"),
    [
        ({"RANK": "1"}, "generate", ONE),
        ({"RANK": "abc", "LOCAL_RANK": "3"}, "generate", [*ONE, "--tp", "3"]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "generate", ONE),
        ({"RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "here"}, "generate", ONE),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": ""}, "generate", ONE),
        (POD, "generate", [*ONE, "--tp", "1"]),
        (POD, "generate", [*ONE, "--tp", "1", "--draft", "itself"]),
        (POD, "preflight", []),
        (POD, "verify", ["--length", "3"]),
    ],
    ids=str,
)
def test_a_command_of_one_process_answers_in_another_launcher_s_job(
    run: Run,
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    command: str,
    options: list[str],
) -> None:
    options = [str(llama) if each == "itself" else each for each in options]
    expected = run(command, llama, *options)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = run(command, llama, *options)
    assert (found.code, found.out) == (0, expected.out) and found.out


def test_a_lone_world_size_is_no_torchrun(
    run: Run, chatty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch systems set it too; loading asks for RANK and MASTER_ADDR beside it."""
    pipe(monkeypatch, "text")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert run("generate", chatty, "--max-new-tokens", 1).code == 0


def test_a_broken_world_size_is_named_before_the_pipe_is_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "text")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "three"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    done = run("generate", "nowhere")
    assert done.code == 1 and "WORLD_SIZE='three'" in done.err


def test_a_pipe_without_text_is_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), "utf-8"))
    done = run("generate", "nowhere")
    assert done.code == 2 and "byte 2 is 0xff" in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_closed_streams(llama: Path, closed: str) -> None:
    prompt = "" if closed == "<&-" else "--token-ids 9"
    command = f'"{sys.executable}" -m archzoo generate "{llama}" --max-new-tokens 2 {prompt} '
    done = subprocess.run(
        ["sh", "-c", command + closed], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr and done.stdout == ""
    if closed == "<&-":
        assert done.returncode == 2 and "through a pipe" in done.stderr
    else:
        assert done.returncode == 0 and done.stderr.startswith("2 tokens")


def test_new_tokens_nobody_asked_for_fit_the_context(run: Run, llama: Path) -> None:
    """Context 256: 128 tokens where they fit, else as many as fit; asked for, all or nothing."""
    for length, count in ((3, 128), (128, 128), (129, 127), (255, 1)):
        ids = ",".join(["9"] * length)
        done = run("generate", llama, "--token-ids", ids, "--ignore-eos")
        assert done.code == 0, done.err
        assert done.err.startswith(f"{count} token")
    done = run("generate", llama, "--token-ids", ",".join(["9"] * 129), "--max-new-tokens", 128)
    assert done.code == 1 and "129 prompt tokens + 128 new = 257" in done.err
    done = run("generate", llama, "--token-ids", ",".join(["9"] * 256))
    assert done.code == 1 and "256 prompt tokens + 1 new = 257" in done.err


@pytest.mark.parametrize("chat", [[], ["--chat"]], ids=["text", "chat"])
def test_a_prompt_is_made_into_tokens_once(
    run: Run, chatty: Path, monkeypatch: pytest.MonkeyPatch, chat: list[str]
) -> None:
    seen: list[object] = []

    def counted(name: str) -> None:
        original = getattr(TransformersTokenizer, name)

        def call(self: TransformersTokenizer, prompt: Any, *rest: Any, **options: Any) -> Any:
            seen.append(prompt)
            return original(self, prompt, *rest, **options)

        monkeypatch.setattr(TransformersTokenizer, name, call)

    counted("apply_chat" if chat else "encode")
    assert run("generate", chatty, "--prompt", "hi", "--max-new-tokens", 1, *chat).code == 0
    assert len(seen) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--prompt", "a", "--token-ids", "1"],
        ["--token-ids", "1", "--chat"],
        ["--prompt", "a", "--system", "b"],
        ["--prompt", "a", "--dtype", "float8"],
        ["--prompt", "a", "--tp", "0"],
        ["--prompt", "a", "--max-new-tokens", "0"],
        ["--prompt", "a", "--output", "no/such/folder/out.json"],
        ["--prompt", "a", "--output", "."],
    ],
    ids=" ".join,
)
def test_options_that_contradict_are_usage(
    run: Run, llama: Path, forbid: Callable[[str], None], options: list[str]
) -> None:
    forbid(LOAD)
    done = run("generate", llama, *options)
    assert done.code == 2 and done.out == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--token-ids", "1", "--temperature", "-1"], "temperature=-1"),
        (["--token-ids", "1", "--top-p", "0"], "top_p"),
        (["--token-ids", "1", "--stop", ""], "stop"),
        (["--prompt", "text"], "no tokenizer"),
        (["--prompt", "text", "--chat"], "no tokenizer"),
    ],
    ids=str,
)
def test_a_request_is_refused_before_weights_are_read(
    run: Run, llama: Path, forbid: Callable[[str], None], options: list[str], says: str
) -> None:
    forbid(LOAD)
    done = run("generate", llama, *options)
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("error: ") and says in done.err


def test_a_model_that_cannot_fit_is_refused_unread(
    run: Run, llama: Path, forbid: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    forbid("archzoo.weights.safetensors_source.SafetensorsSource.read")
    done = run("generate", llama, "--token-ids", "1")
    assert done.code == 1
    assert "GiB" in done.err and "available" in done.err


def test_a_path_that_is_not_there(run: Run, tmp_path: Path) -> None:
    done = run("generate", tmp_path / "gone", "--token-ids", "1")
    assert done.code == 1 and "does not exist" in done.err


def test_offline_asks_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    done = run("generate", "someone/no-such-model", "--token-ids", "1", "--offline")
    assert done.code == 1 and "offline" in done.err


def test_sampling_options_arrive(run: Run, chatty: Path, model: archzoo.Model) -> None:
    options = {"temperature": 5.0, "top_k": 50, "top_p": 0.9, "seed": 11}
    want = model.generate("hello", max_new_tokens=12, ignore_eos=True, **options)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    base = ("generate", chatty, "--prompt", "hello", "--max-new-tokens", 12, "--ignore-eos")
    assert run(*base, *flags).out.rstrip("\n") == want.text.rstrip("\n")
    greedy = run(*base).out
    assert greedy.rstrip("\n") != want.text.rstrip("\n")
    end = next(char for char in want.text[2:] if char.isascii() and char.isprintable())
    cut = run(*base, *flags, "--stop", "never seen", "--stop", end)
    assert cut.out.rstrip("\n") == want.text[: want.text.index(end)].rstrip("\n")
    assert "end: stop" in cut.err


def test_simulated_ranks_say_the_same(run: Run, llama: Path) -> None:
    base = ("generate", llama, "--token-ids", "9,8,7", "--max-new-tokens", 8, "--ignore-eos")
    assert run(*base, "--tp", 3).out == run(*base).out
    assert run(*base, "--pp", 3).out == run(*base).out
    assert run(*base, "--tp", 3, "--pp", 2).out == run(*base).out
    groups = (*base, "--tp", 6, "--attn-dp", 2)
    assert run(*groups).out == run(*groups, "--dp-lm-head", "--pp", 2).out == run(*base).out
    assert run(*groups, "--plan", "naive").out == run(*base).out
    done = run(*base, "--tp", 3, "--attn-dp", 2)
    assert done.code == 1 and "attn_dp=2 does not divide tp=3" in done.err
    done = run(*base, "--pp", 4)
    assert done.code == 1 and "pp=4: more pipeline stages than the model's 3 layers" in done.err
    done = run(*base, "--tp", 4)
    assert done.code == 1 and done.out == ""
    assert "6 query heads" in done.err and "tp=4" in done.err


def test_a_broken_environment_of_torchrun_is_named(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "three"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    done = run("generate", llama, "--token-ids", "1")
    assert done.code == 1 and "WORLD_SIZE='three'" in done.err


def test_one_token_has_no_rate(run: Run, llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run(
        "generate", llama, "--token-ids", "9", "--max-new-tokens", 1, "--output", file, "--dtype",
        "bfloat16",
    )  # fmt: skip
    assert done.code == 0
    assert done.err.startswith("1 token · first token") and "tokens/s" not in done.err
    assert json.loads(file.read_text())["timing"]["decode_tokens_per_second"] is None


def test_ctrl_c_closes_the_line(run: Run, chatty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(self: archzoo.Model, *_args: Any, **_options: Any) -> Iterator[StreamChunk]:
        yield StreamChunk(0, [3], "half a sen", None)
        raise KeyboardInterrupt

    monkeypatch.setattr(archzoo.Model, "generate", generate)
    assert run("generate", chatty, "--prompt", "x") == (130, "half a sen\n", "")


def test_processes_of_torchrun_speak_with_one_voice(run: Run, llama: Path) -> None:
    """Without --tp it is as many as there are processes."""
    sizes = ["--attn-dp", "3", "--dp-lm-head"]
    arguments = ["generate", str(llama), "--token-ids", "9,8,7", "--max-new-tokens", "8"]
    arguments.append("--ignore-eos")
    want = run(*arguments).out
    ends = as_processes([*arguments, *sizes], 3)
    assert [each.code for each in ends] == [0, 0, 0], ends
    assert ends[0].out == want and ends[0].err.startswith("8 tokens")
    assert ends[1:] == [(0, "", "")] * 2


def test_a_draft_is_reported_and_changes_nothing(
    run: Run, chatty: Path, model: archzoo.Model, tmp_path: Path
) -> None:
    """The model as its own draft; a stop string inside an accepted run cuts as ever."""
    file = tmp_path / "out.json"
    text = model.generate("hello", max_new_tokens=12).text
    words = (text[at : at + 2] for at in range(2, len(text) - 1))
    word = next(word for word in words if word.isascii() and text.find(word) >= 2)
    want = model.generate("hello", max_new_tokens=12, stop=word)
    options = ("--prompt", "hello", "--max-new-tokens", 12, "--stop", word, "--output", file)
    done = run("generate", chatty, *options, "--draft", chatty, "--draft-tokens", 5)
    assert done.code == 0, done.err
    assert done.out.strip() == want.text.strip() and want.finish_reason == "stop"
    written = json.loads(file.read_text())
    assert written["token_ids"] == want.token_ids
    report = written["speculation"]
    assert 0 < report["accepted"] <= report["proposed"]
    share = f"{report['accepted'] / report['proposed']:.0%}"
    told = f"draft: {report['accepted']} of {report['proposed']} accepted ({share}), "
    assert told + f"{report['target_forwards']} forwards" in done.err


def test_drafts_that_do_not_fit_are_refused(run: Run, llama: Path, chatty: Path) -> None:
    done = run("generate", llama, "--token-ids", "5", "--draft", chatty)
    assert done.code == 1 and "vocabulary of 260 tokens, its target one of 130" in done.err
    done = run("generate", llama, "--token-ids", "5", "--draft-tokens", 3)
    assert done.code == 2 and "add --draft" in done.err
    done = run("generate", llama, "--token-ids", "5", "--draft", "/nothing/there")
    assert done.code == 1 and "/nothing/there" in done.err
