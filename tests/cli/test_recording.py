"""verify --record and --against: what is kept, what is refused, and what is not run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import Run
from cli.test_verify import STAGES, verdicts
from safetensors import safe_open
from safetensors.torch import save_file

from archzoo.cli.recording import Recording, _digest, read_recording
from archzoo.errors import CheckpointFileError
from tiny import tiny_llama


@pytest.fixture(scope="module")
def kept(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording as an operator makes it."""
    from archzoo.cli import main

    file = tmp_path_factory.mktemp("kept") / "reference.safetensors"
    assert main(["verify", str(llama), "--length", "7", "--seed", "3", "--record", str(file)]) == 0
    return file


def test_what_transformers_computed_is_kept_and_compared_with_without_it(
    run: Run, llama: Path, kept: Path, forbid: Callable[[str], None]
) -> None:
    recorded = read_recording(kept)
    assert list(recorded.trace) == STAGES and len(recorded.ids) == 7
    assert recorded.made_by.startswith("transformers ") and recorded.made_by.endswith("in float32")
    assert recorded.dtype == torch.float32 and len(recorded.tensors) == 30
    forbid("archzoo.cli.verify.reference_model")
    done = run("verify", llama, "--against", kept, "--tp", "1,3", "--pp", 2)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES * 2]
    assert "float32, 7 tokens" in done.out and recorded.made_by in done.err


def test_the_narrower_number_format_decides_what_agrees(
    run: Run, llama: Path, kept: Path, tmp_path: Path
) -> None:
    assert run("verify", llama, "--against", kept, "--dtype", "bfloat16").code == 0
    narrow = tmp_path / "narrow.safetensors"
    assert run("verify", llama, "--dtype", "bfloat16", "--record", narrow).code == 0
    assert read_recording(narrow).dtype == torch.bfloat16
    assert run("verify", llama, "--against", narrow).code == 0
    assert run("verify", llama, "--against", narrow, "--tolerance", "2e-4").code == 1


def test_gguf_names_are_those_of_hugging_face(run: Run, gguf_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "gguf.safetensors"
    assert run("verify", gguf_file, "--length", 4, "--record", file).code == 0
    assert "model.layers.2.self_attn.q_proj.weight" in read_recording(file).tensors
    assert run("verify", gguf_file, "--against", file).code == 0


def test_only_what_agrees_is_kept(run: Run, llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "never.safetensors"
    done = run("verify", llama, "--length", 5, "--tolerance", "1e-12", "--record", file)
    assert done.code == 1 and "never.safetensors is not written" in done.err
    assert not file.exists()


@pytest.mark.parametrize(
    "options",
    [["--record", "b"], ["--prompt", "a"], ["--token-ids", "1"], ["--length", "4"]],
    ids=lambda options: options[0],
)
def test_a_recording_brings_its_own_prompt(run: Run, llama: Path, options: list[str]) -> None:
    done = run("verify", llama, "--against", "a", *options)
    assert done.code == 2 and "its own prompt" in done.err


def test_a_place_that_cannot_be_written_is_found_out_first(
    run: Run, llama: Path, tmp_path: Path, forbid: Callable[[str], None]
) -> None:
    forbid("archzoo.cli.verify.reference_model")
    done = run("verify", llama, "--record", tmp_path / "no" / "file")
    assert done.code == 2 and "--record" in done.err and "cannot write" in done.err


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"num_hidden_layers": 2}, "layers 3 and hidden size 48, the checkpoint has layers 2 and"),
        ({"hidden_size": 96}, "the checkpoint has layers 3 and hidden size 96"),
        ({"vocab_size": 90, "eos_token_id": 2}, "vocabulary of 90"),
        ({"max_position_embeddings": 6}, "7 tokens, more than the context of 6"),
        ({"vocab_size": 140}, "other stages or shapes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_recording_of_another_model_is_refused(
    run: Run, kept: Path, tmp_path: Path, sizes: dict[str, Any], says: str
) -> None:
    tiny_llama(tmp_path / "other", **sizes)
    done = run("verify", tmp_path / "other", "--against", kept)
    assert done.code == 1 and says in done.err.replace("\n", " "), done.err


Parts = tuple[dict[str, torch.Tensor], dict[str, str]]


def parts(file: Path) -> Parts:
    """Tensors and metadata of a recording."""
    with safe_open(file, "pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}, dict(stored.metadata())


def value_changed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Parts:
    tensors["layer 1"][2, 5] += 1e-3
    return tensors, metadata


def prompt_changed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Parts:
    tensors["ids"][0] = 1 + tensors["ids"][0] % 100
    return tensors, metadata


def facts_changed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Parts:
    return tensors, {**metadata, "facts": metadata["facts"].replace("transformers", "somebody")}


def stages_exchanged(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Parts:
    tensors["layer 0"], tensors["layer 1"] = tensors["layer 1"], tensors["layer 0"]
    return tensors, metadata


@pytest.mark.parametrize(
    "damage",
    [value_changed, prompt_changed, facts_changed, stages_exchanged],
    ids=lambda f: f.__name__,
)
def test_a_damaged_recording_is_told_from_a_model_that_departs(
    run: Run, llama: Path, kept: Path, tmp_path: Path, damage: Callable[..., Parts]
) -> None:
    file = tmp_path / "damaged.safetensors"
    tensors, metadata = damage(*parts(kept))
    save_file(tensors, file, metadata)
    done = run("verify", llama, "--against", file)
    assert done.code == 1 and "holds other values than were written" in done.err
    assert done.out == ""


LIES: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "no ids": lambda facts, tensors: tensors.pop("ids"),
    "no stage": lambda facts, tensors: tensors.pop("layer 1"),
    "a stage too many": lambda facts, tensors: tensors.update(more=torch.ones(7, 2)),
    "stages of no list": lambda facts, tensors: facts.update(stages=5),
    "no stages": lambda facts, tensors: facts.pop("stages"),
    "tensors of no object": lambda facts, tensors: facts.update(tensors=["a"]),
    "nobody": lambda facts, tensors: facts.pop("made_by"),
    "ids of floats": lambda facts, tensors: tensors.update(ids=tensors["ids"].float()),
    "empty ids": lambda facts, tensors: tensors.update(ids=tensors["ids"][:0]),
    "flat rows": lambda facts, tensors: tensors.update({"layer 1": torch.ones(7)}),
    "other rows": lambda facts, tensors: tensors.update({"layer 1": torch.ones(6, 48)}),
    "integers": lambda facts, tensors: tensors.update({"layer 1": torch.ones(7, 48).int()}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_recording_that_lies_is_refused(kept: Path, tmp_path: Path, lie: str) -> None:
    tensors, metadata = parts(kept)
    facts = json.loads(metadata["facts"])
    LIES[lie](facts, tensors)
    text, file = json.dumps(facts), tmp_path / "lie.safetensors"
    metadata |= {"facts": text, "digest": _digest(text, tensors)}
    save_file(tensors, file, metadata)
    with pytest.raises(CheckpointFileError, match=r"contradicts itself.*--record FILE"):
        read_recording(file)


@pytest.mark.parametrize("facts", ["", "null", "[" * 100_000, "{"], ids=["", "null", "deep", "{"])
def test_facts_that_are_no_object(kept: Path, tmp_path: Path, facts: str) -> None:
    tensors, metadata = parts(kept)
    file = tmp_path / "lie.safetensors"
    save_file(tensors, file, {**metadata, "facts": facts, "digest": _digest(facts, tensors)})
    with pytest.raises(CheckpointFileError, match="contradicts itself"):
        read_recording(file)


def test_other_files_are_no_recordings(llama: Path, kept: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match="is no recording, expected version 1"):
        read_recording(llama / "model.safetensors")
    with pytest.raises(CheckpointFileError, match="cannot be read as a recording"):
        read_recording(llama / "config.json")
    with pytest.raises(CheckpointFileError, match="cannot be read as a recording"):
        read_recording(tmp_path / "nowhere")
    with pytest.raises(CheckpointFileError, match="cannot be read as a recording"):
        read_recording(tmp_path)
    (tmp_path / "cut").write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(CheckpointFileError, match="cannot be read as a recording"):
        read_recording(tmp_path / "cut")
    tensors, metadata = parts(kept)
    save_file(tensors, tmp_path / "newer", {**metadata, "archzoo_recording": "2"})
    with pytest.raises(CheckpointFileError, match="is a recording of version '2', expected"):
        read_recording(tmp_path / "newer")


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = {
        "embedding": torch.randn(2, 3),
        "layer 0": torch.randn(3, 2).T,
        "logits": torch.ones(1, 9),
    }
    one = Recording((4, 5), trace, "me", {"a": "b"})
    one.write(tmp_path / "file")
    two = read_recording(tmp_path / "file")
    assert (two.ids, two.made_by, two.tensors) == (one.ids, one.made_by, one.tensors)
    assert list(two.trace) == list(trace)
    assert all(torch.equal(two.trace[stage], values) for stage, values in trace.items())
