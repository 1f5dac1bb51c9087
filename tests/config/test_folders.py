"""Folders that are no checkpoint are told by what they are, through load and preflight alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archzoo
from archzoo.config.folders import likely_kind
from archzoo.errors import ArchzooError, CheckpointFileError, WeightError
from tiny import tiny_llama

CALLS = pytest.mark.parametrize("call", [archzoo.load, archzoo.preflight])
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 3\n"
KINDS = [
    ("model_index.json", "a diffusers pipeline"),
    ("__0_0.distcp", r"torch\.distributed\.checkpoint"),
    ("global_step500/mp_rank_00.pt", r"zero_to_fp32\.py"),
    ("params.json", "author's own format"),
    ("pytorch_model.bin.index.json", "an index of pickles that are not there"),
    ("model.onnx", "an ONNX export"),
    ("onnx/model.onnx", "an ONNX export"),
    ("flax_model.msgpack", "weights of Flax"),
    ("tf_model.h5", "weights of TensorFlow"),
    ("weights.npz", "weights of MLX"),
    ("model.safetensors.incomplete", "a download that did not finish"),
    ("optimizer.pt", "a trainer's state without the model's weights"),
    ("checkpoint-500/config.json", "there is one in checkpoint-500; give that folder"),
    ("snapshots/abc/config.json", "there is one in snapshots/abc; give that folder"),
]


def put(folder: Path, name: str, content: str = "{}") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    return folder


@CALLS
@pytest.mark.parametrize(("name", "says"), KINDS)
def test_what_lies_there_is_named(
    call: Callable[[Path], Any], name: str, says: str, tmp_path: Path
) -> None:
    put(tmp_path, name)
    with pytest.raises(ArchzooError, match=rf"config\.json: no such file; .*{says}"):
        call(tmp_path)
    put(tmp_path, "config.json")
    with pytest.raises(CheckpointFileError, match=rf"holds no safetensors or GGUF file.*{says}"):
        call(tmp_path)


def test_nothing_shows_in_an_ordinary_or_absent_folder(tmp_path: Path) -> None:
    assert likely_kind(put(tmp_path, "tokenizer.json")) == likely_kind(tmp_path / "none") == ""


@CALLS
@pytest.mark.parametrize(("content", "says"), [(LFS, "Git LFS pointer"), ("<html>", "HTML")])
def test_a_config_that_is_something_else(
    call: Callable[[Path], Any], content: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ArchzooError, match=rf"config\.json: is an? {says}"):
        call(put(tmp_path, "config.json", content))


@CALLS
def test_adapters_are_named(call: Callable[[Path], Any], tmp_path: Path) -> None:
    """Alone, beside a whole model, and as names of a state that was not merged."""
    base = json.dumps({"base_model_name_or_path": "owner/name"})
    alone = put(tmp_path / "alone", "adapter_config.json", base)
    with pytest.raises(CheckpointFileError, match=r"adapter of 'owner/name'.*merge it"):
        call(alone)
    path, _ = tiny_llama(tmp_path / "whole")
    put(path, "adapter_config.json", base)
    with pytest.raises(CheckpointFileError, match=r"adapter of 'owner/name'.*merged already, rem"):
        call(path)
    (path / "adapter_config.json").unlink()
    names = load_file(path / "model.safetensors")
    renamed = {
        f"base_model.model.{name.replace('q_proj.', 'q_proj.base_layer.')}": tensor
        for name, tensor in names.items()
    }
    lora = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    save_file({**renamed, lora: torch.ones(2, 48)}, path / "model.safetensors")
    with pytest.raises(WeightError, match="PEFT adapter that is not merged"):
        call(path)


def test_a_path_to_the_config_means_its_folder(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    assert archzoo.preflight(path / "config.json").ok
    assert archzoo.load(path / "config.json").config.hidden_size == 48
    with pytest.raises(CheckpointFileError, match=r"is neither a \.safetensors nor a \.gguf file"):
        archzoo.load(put(tmp_path / "other", "model.zip") / "model.zip")
