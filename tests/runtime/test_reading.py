"""Which family reads a config: stated twice, stated once, overruled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel
from typer.testing import CliRunner

import archzoo
from archzoo.cli.app import app
from archzoo.errors import ConfigError, InputError
from archzoo.runtime.reading import language_model_of
from tiny import SIZES, ids_of, randomise, reference_logits, save, tiny_llama

LLAMA, MISTRAL = "LlamaForCausalLM", "MistralForCausalLM"


def edit(path: Path, absent: tuple[str, ...] = (), **changes: Any) -> Path:
    file = path / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: raw[key] for key in raw if key not in absent}))
    return path


@pytest.fixture
def windowed(tmp_path: Path) -> tuple[Path, PreTrainedModel]:
    """A Mistral with a window of 4 tokens, whose config says Llama in one of the two places."""
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).eval()
    randomise(model)
    return edit(save(model, tmp_path), architectures=[LLAMA]), model


def test_families_that_read_a_config_differently(windowed: tuple[Path, PreTrainedModel]) -> None:
    path, model = windowed
    ids = ids_of(20)
    for call in (archzoo.load, archzoo.preflight):
        with pytest.raises(ConfigError) as told:
            call(path)
        message = str(told.value)
        assert told.value.field == "model_type" and "As llama: sliding_windows=(None," in message
        assert "As mistral: sliding_windows=(4," in message
        assert f"architecture={LLAMA!r} or architecture={MISTRAL!r}" in message
    served = archzoo.load(path, dtype="float32", architecture=MISTRAL)
    assert served.config.architectures == (MISTRAL,)
    torch.testing.assert_close(served.logits(ids), reference_logits(model, ids), rtol=0, atol=2e-4)
    plain = archzoo.load(path, dtype="float32", architecture=LLAMA)
    assert (served.logits(ids) - plain.logits(ids)).abs().max() > 0.1
    assert f"served as asked: {LLAMA}" in plain.reports[0].notes
    assert f"served as asked: {LLAMA}" in archzoo.preflight(path, architecture=LLAMA).notes


def test_families_that_read_a_config_alike(tmp_path: Path) -> None:
    path, model = tiny_llama(tmp_path)
    for changes in ({"model_type": "mistral", "sliding_window": None}, {"model_type": "acme"}):
        served = archzoo.load(edit(path, **changes), dtype="float32")
        ids = ids_of(7)
        want = reference_logits(model, ids)
        torch.testing.assert_close(served.logits(ids), want, rtol=0, atol=2e-4)
    with pytest.raises(ConfigError, match="'gemma' is GemmaForCausalLM to transformers"):
        archzoo.load(edit(path, model_type="gemma"))


def test_a_model_type_alone_is_enough(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    assert archzoo.load(edit(path, absent=("architectures",))).config.architectures == (LLAMA,)
    found = map(language_model_of, ("qwen3_moe", "mistral", "acme", ""))
    assert list(found) == [("Qwen3MoeForCausalLM",), (MISTRAL,), (), ()]


def test_fields_to_ignore_on_every_path(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    edit(path, final_logit_softcapping=30.0, acme_dial=3)
    commands = (["preflight"], ["preflight", "--boundaries"], ["generate", "--token-ids", "5"])
    for command in (*commands, ["verify", "--length", "5"]):
        refused = CliRunner().invoke(app, [command[0], str(path), *command[1:]])
        assert refused.exit_code and "--ignore-field final_logit_softcapping" in " ".join(
            (refused.stdout + refused.stderr).split()
        )
        more = ["--ignore-field", "final_logit_softcapping", "--architecture", LLAMA]
        done = CliRunner().invoke(app, [command[0], str(path), *command[1:], *more])
        assert done.exit_code == 0, done.stderr
    report = archzoo.load(path, ignore_fields=["final_logit_softcapping"]).reports[0]
    assert report.notes[-2:] == (
        "config fields ignored as asked: final_logit_softcapping",
        "unknown config fields: acme_dial",
    )
    surveyed = archzoo.preflight(path, ignore_fields=["final_logit_softcapping"])
    assert surveyed.notes[-1:] == report.notes[-2:-1]
    assert surveyed.config.ledger.unknown == ("acme_dial",)


def test_bad_overrides_are_refused(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    for bad in ({"ignore_fields": "x"}, {"ignore_fields": [3]}, {"architecture": ""}):
        with pytest.raises(InputError):
            archzoo.load(path, **bad)
    with pytest.raises(ConfigError, match="acme: asked to be ignored, but the file does not"):
        archzoo.load(path, ignore_fields=["acme"])


def test_generation_config_says_alone_where_an_output_ends(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    edit(path, absent=("eos_token_id",))
    stated = path / "generation_config.json"
    for content, ids in (({"eos_token_id": [7, 9]}, {7, 9}), ({}, {2})):
        stated.write_text(json.dumps(content))
        assert archzoo.load(path).stop_ids(with_tokenizer=False) == ids
