"""bench: the right work inside the clock, fair turns, ratios in the right direction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import Run

import archzoo
import archzoo.cli.contenders as contenders
import archzoo.cli.measuring as measuring
from archzoo.cli import footprint
from archzoo.cli.contenders import Ours, Theirs
from archzoo.cli.measuring import Figure, Plan
from archzoo.cli.reference import reference_model
from archzoo.errors import CapacityError, InputError
from archzoo.runtime import Engine
from tiny import tiny_llama

SMALL = ("--prompt-tokens", 20, "--decode-tokens", 4, "--rounds", 2, "--batch", "1,3")


class Clock:
    """Counts forwards, and says at each look at the clock how many there were."""

    def __init__(self) -> None:
        self.forwards = 0
        self.looks: list[int] = []

    def __call__(self) -> float:
        self.looks.append(self.forwards)
        return float(len(self.looks))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contenders, "perf_counter", clock)
    return clock


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Start and peak memory without a process for each."""
    asked: list[tuple[Any, ...]] = []

    def measure(*arguments: Any) -> footprint.Footprint:
        asked.append(arguments)
        mebibytes = 300 if arguments[0] == "ours" else 450
        return footprint.Footprint(mebibytes / 100, mebibytes * 2**20)

    monkeypatch.setattr(measuring, "measure", measure)
    return asked


def test_our_clock_holds_the_named_forwards_only(
    llama: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Engine.step

    def counted(self: Engine) -> Any:
        clock.forwards += 1
        return step(self)

    monkeypatch.setattr(Engine, "step", counted)
    ours = Ours(archzoo.load(llama))
    ours.prefill([5] * 20)
    assert clock.looks == [0, 1]
    ours.decode([[5] * 20, [6] * 20, [7] * 20], 4)
    assert clock.looks[2:] == [2, 6]


def test_their_clock_holds_the_named_forwards_only(llama: Path, clock: Clock) -> None:
    model = reference_model(llama, torch.float32, "sdpa")

    def counted(*_: object) -> None:
        clock.forwards += 1

    model.register_forward_hook(counted)
    theirs = Theirs(model)
    theirs.prefill([5] * 20)
    assert clock.looks == [0, 1]
    theirs.decode([[5] * 20, [6] * 20, [7] * 20], 4)
    assert clock.looks[2:] == [2, 6]


def test_both_make_the_same_tokens(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[9, 8, 7, 6], [3, 4, 5, 6]]
    model = archzoo.load(llama, dtype="float32")
    want = [r.token_ids for r in model.generate(prompts, max_new_tokens=6, ignore_eos=True)]
    theirs = Theirs(reference_model(llama, torch.float32, "sdpa"))
    made: list[list[int]] = []
    following = theirs._next

    def kept(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        tokens = following(ids, cache)
        made.append(tokens.tolist())
        return tokens

    monkeypatch.setattr(theirs, "_next", kept)
    theirs.decode(prompts, 5)
    assert [list(tokens) for tokens in zip(*made, strict=True)] == want


def test_a_rate_counts_tokens_that_were_made_while_the_clock_ran(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that come in one after the other: the first ones decode meanwhile."""
    model = archzoo.load(llama, prefill_chunk=8)
    spent = iter([10.0, 20.0])
    monkeypatch.setattr(contenders, "perf_counter", lambda: next(spent))
    seconds = Ours(model).decode([[5] * 8, [6] * 24], 10)
    # The short prompt has 3 tokens when the long one has its first: 18 of 20 are left.
    assert seconds == pytest.approx(10 * 20 / 18)


def test_ratios_are_paired_and_above_one_when_ours_is_better() -> None:
    assert Figure("f", "decode", "tokens/s", [30, 10, 8], [10, 5, 8]).ratio == 2
    assert Figure("f", "load", "s", [1, 2, 8], [2, 8, 8]).ratio == 2
    assert Figure("f", "peak memory", "MiB", [100], [150]).ratio == 1.5
    assert Figure("f", "load", "s", [1]).ratio is None


def test_a_table_of_both(run: Run, llama: Path, no_processes: list[tuple[Any, ...]]) -> None:
    done = run("bench", llama, *SMALL, "--dtype", "float32", "--dtype", "bfloat16")
    assert done.code == 0, done.err
    for text in ("prefill 20", "decode, batch 1", "decode, batch 3", "load call"):
        assert done.out.count(text) >= 2
    assert done.out.count("1.50 x") == 4
    assert "450" in done.out and "medians of 2 rounds" in done.out
    turns = ("ours", "theirs", "theirs", "ours")
    assert [call[:3] for call in no_processes] == [
        (who, llama, dtype) for dtype in ("float32", "bfloat16") for who in turns
    ]
    widths = {len(line) for line in done.out.splitlines() if "tokens/s" in line}
    assert len(widths) == 1, "columns are not aligned"


def test_json_holds_the_rounds(run: Run, llama: Path, no_processes: list[tuple[Any, ...]]) -> None:
    done = run("bench", llama, *SMALL, "--json")
    content = json.loads(done.out)
    assert content["rounds"] == 2 and content["batches"] == [1, 3]
    names = [figure["measure"] for figure in content["figures"]]
    assert names == [
        *("prefill 20", "decode, batch 1", "decode, batch 3"),
        *("load call", "load, values checked", "start to first token", "peak memory"),
    ]
    cost = content["figures"].pop(names.index("load, values checked"))
    assert cost["unit"] == "x unchecked load" and len(cost["archzoo_rounds"]) == 2
    assert cost["archzoo"] > 0 and cost["transformers"] is None
    for figure in content["figures"]:
        assert len(figure["archzoo_rounds"]) == len(figure["transformers_rounds"]) == 2
        assert figure["dtype"] == "float32"
        assert figure["ratio"] > 0 and min(figure["archzoo_rounds"]) > 0


def test_without_a_reference(run: Run, llama: Path, no_processes: list[tuple[Any, ...]]) -> None:
    done = run("bench", llama, *SMALL, "--json", "--no-reference")
    for figure in json.loads(done.out)["figures"]:
        assert figure["archzoo"] > 0
        assert figure["transformers"] is None and figure["ratio"] is None
        assert figure["transformers_rounds"] == []
    assert [call[0] for call in no_processes] == ["ours", "ours"]


def test_loading_of_gguf_is_not_compared(
    run: Run, gguf_file: Path, no_processes: list[tuple[Any, ...]]
) -> None:
    done = run("bench", gguf_file, *SMALL, "--json")
    figures = {each["measure"]: each for each in json.loads(done.out)["figures"]}
    assert figures["load call"]["archzoo"] > 0 and figures["load call"]["transformers"] is None
    assert figures["peak memory"]["transformers"] is None
    assert figures["decode, batch 3"]["ratio"] > 0


def test_contenders_take_turns(llama: Path, no_processes: list[tuple[Any, ...]]) -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def prefill(self, prompt: Sequence[int]) -> float:
            order.append(self.name)
            return self.seconds

        def decode(self, prompts: Sequence[Sequence[int]], count: int) -> float:
            return self.prefill(prompts[0])

    plan = Plan((8,), prompt_tokens=16, decode_tokens=4, rounds=3)
    bench = measuring.Measuring(llama, None, plan, lambda text: None)
    prefill, decode = bench._speeds([Fake("a", 1.0), Fake("b", 2.0)])
    warm_up, first, second, third = "aabb", "abab", "baba", "abab"
    assert "".join(order) == warm_up + first + second + third
    assert prefill.ours == [16.0] * 3 and prefill.theirs == [8.0] * 3
    assert decode.ours == [32.0] * 3 and decode.theirs == [16.0] * 3


@pytest.mark.parametrize(
    ("option", "says"),
    [("--prompt-tokens", "--prompt-tokens 255"), ("--decode-tokens", "--decode-tokens 255")],
)
def test_what_does_not_fit_the_context_is_refused_unread(
    run: Run, llama: Path, forbid: Callable[[str], None], option: str, says: str
) -> None:
    forbid("archzoo.cli.measuring.load")
    done = run("bench", llama, "--no-reference", option, 255)
    assert done.code == 1 and f"{says} and two more tokens" in done.err
    assert "context of 256" in done.err and "at most 254" in done.err


def test_options_that_are_no_numbers_are_usage(run: Run, llama: Path) -> None:
    assert run("bench", llama, "--batch", "8,x").code == 2
    assert run("bench", llama, "--rounds", "0").code == 2


@pytest.mark.parametrize(
    ("options", "prompt", "decode_prompt", "memory_decode"),
    [((), 46, 43, 1), (("--prompt-tokens", 40, "--decode-tokens", 46), 40, 1, 7)],
    ids=["by default", "asked for"],
)
def test_a_short_context(
    run: Run,
    tmp_path: Path,
    no_processes: list[tuple[Any, ...]],
    options: tuple[object, ...],
    prompt: int,
    decode_prompt: int,
    memory_decode: int,
) -> None:
    """Context 48: a prompt, its first new token and the decode steps fit; the facts say so."""
    tiny_llama(tmp_path, max_position_embeddings=48)
    base = ("bench", tmp_path, "--rounds", 1, "--batch", "2", "--decode-tokens", 4)
    done = run(*base, *options, "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert facts["prompt_tokens"] == prompt
    assert facts["decode_prompt_tokens"] == decode_prompt
    assert facts["memory_decode_tokens"] == memory_decode
    stated = {"architecture": None, "ignore_fields": ()}
    assert [call[3:] for call in no_processes] == [(prompt, memory_decode, stated)] * 2
    assert re.search(
        rf"tokens after prompts of {decode_prompt}\s*$", run(*base, *options).out, re.M
    )
    assert footprint.measure("ours", tmp_path, "float32", prompt, memory_decode).peak > 0


@pytest.mark.parametrize("context", [1, 2])
def test_a_context_too_short_to_measure(context: int) -> None:
    with pytest.raises(InputError, match=f"context of {context}; it is too short"):
        Plan(prompt_tokens=1, decode_tokens=1).within(context)


def test_the_shortest_context() -> None:
    plan = Plan(prompt_tokens=1, decode_tokens=1).within(3)
    assert (plan.decode_prompt_tokens, plan.memory_decode_tokens) == (1, 1)


def test_start_and_peak_memory_of_a_process(llama: Path) -> None:
    found = footprint.measure("ours", llama, "float32", 20, 2)
    assert 50 * 2**20 < found.peak < 2 * 2**30
    assert 0.1 < found.first_token < 100
    with pytest.raises(CapacityError, match=r"ours\) ended with code 1: .*does not exist"):
        footprint.measure("ours", llama / "gone", "float32", 20, 2)


def test_peak_memory_is_this_processs_own() -> None:
    before = footprint.peak_bytes()
    block = torch.ones(64 * 2**20 // 4 + before // 4)
    assert footprint.peak_bytes() >= before + 32 * 2**20
    del block
    assert footprint.peak_bytes() >= before + 32 * 2**20
