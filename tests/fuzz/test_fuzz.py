"""A short slice of the fuzz target, the whole corpus, and proof that an escape would be seen."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from fuzz import campaign as campaigns
from fuzz import targets
from fuzz.campaign import CORPUS, SLOW_S, campaign, seeds, try_input
from fuzz.mutator import mutate
from fuzz.targets import TARGETS

from archzoo.errors import ArchzooError, ConfigError

ACCEPTED = {
    "config": {"llama", "llama3", "yarn", "longrope", "quantized", "dynamic"},
    "headers": {"two-files"},
    "gguf": {"plain", "q8", "q4", "rope"},
    "gguf-tokenizer": {"bytes", "pieces", "spaced-bos"},
    "index": {"good"},
    "sentences": {"dense", "qwen3"},
    "safetensors": {"two-layers", "tied", "dtypes", "odd", "empty"},
    "tokenizer": {"bytes", "sentencepiece", "wordpiece", "unigram"},
    "tokenizer_config": {"plain", "stated"},
    "template": {"alternating", "chatml", "thinking", "tools"},
    "generation_config": {"one", "plain"},
}


def corpus() -> list[Path]:
    return sorted(path for target in TARGETS for path in (CORPUS / target).iterdir())


@pytest.mark.parametrize("path", corpus(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_kept_corpus_is_read_or_refused(tmp_path, path):
    target = path.parent.name
    refused, escape = try_input(target, path.read_bytes(), tmp_path)
    assert escape is None, escape
    assert refused == (path.name not in ACCEPTED[target])


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_escapes_in_a_short_campaign(tmp_path, target):
    outcome = campaign(target, 1.5, 5, tmp_path, least=30)
    assert outcome.escape is None, outcome.escape
    assert 0 < outcome.refused < outcome.runs


def test_campaigns_repeat_by_their_seed():
    def inputs(seed: int) -> list[bytes]:
        dice = random.Random(seed)
        return [mutate(dice, seeds("safetensors"), framed=True) for _ in range(50)]

    assert inputs(3) == inputs(3) != inputs(4)
    framed = [each for each in inputs(3) if each[8:].startswith(b"{")]
    assert any(struct.unpack("<Q", each[:8])[0] == each.rfind(b"}") - 7 for each in framed)


@pytest.mark.parametrize(
    ("error", "seen"),
    [(KeyError("x"), "KeyError"), (MemoryError(), "MemoryError"), (RecursionError(), "Recursion"),
     (KeyboardInterrupt(), "KeyboardInterrupt"), (AssertionError(), "AssertionError")],
)  # fmt: skip
def test_another_error_is_an_escape(tmp_path, monkeypatch, error, seen):
    def broken(content: bytes, folder: Path) -> None:
        raise error

    monkeypatch.setattr(targets, "TARGETS", {"config": broken})
    outcome = campaign("config", 5, 0, tmp_path)
    assert outcome.escape is not None and seen in outcome.escape.what and outcome.runs == 1


def test_ours_are_none_unless_they_are_slow(tmp_path, monkeypatch):
    def ours(content: bytes, folder: Path) -> None:
        raise ConfigError("no")

    monkeypatch.setattr(targets, "TARGETS", {"config": ours})
    assert issubclass(ConfigError, ArchzooError)
    assert try_input("config", b"", tmp_path) == (True, None)
    monkeypatch.setattr(campaigns, "SLOW_S", 0.0)
    _, escape = try_input("config", b"", tmp_path)
    assert escape is not None and escape.what.startswith("took") and SLOW_S == 2.0
