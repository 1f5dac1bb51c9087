"""What a checkpoint's headers decide against its config: plain weights, rows of a head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archzoo
from archzoo.errors import ConfigError, QuantizationError
from tiny import ids_of, reference_logits, tiny_llama

CALLS = pytest.mark.parametrize("call", [archzoo.load, archzoo.preflight])
BLOCKS: list[dict[str, Any]] = [
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    {"load_in_8bit": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
]


def edit(path: Path, **changes: Any) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_over_plain_weights_is_told_so_and_may_be_set_aside(
    block: dict[str, Any], tmp_path: Path
) -> None:
    path, reference = tiny_llama(tmp_path)
    edit(path, quantization_config=block)
    calls: list[Callable[..., Any]] = [archzoo.load, archzoo.preflight]
    for call in calls:
        with pytest.raises(QuantizationError, match=r"all weights are plain.*quantization='none'"):
            call(path)
        with pytest.raises(QuantizationError, match="'int4' is not served"):
            call(path, quantization="int4")
    assert archzoo.preflight(path, quantization="none").ok
    model = archzoo.load(path, dtype="float32", quantization="none")
    ids = ids_of(7)
    torch.testing.assert_close(
        model.logits(ids), reference_logits(reference, ids), rtol=0, atol=2e-4
    )
    assert model.config.ledger.ignored["quantization_config"] == "null"


@CALLS
def test_a_block_over_packed_weights_is_refused_as_before(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    path, _ = tiny_llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[f"{name.removesuffix('weight')}qweight"] = tensors.pop(name).to(torch.int32)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QuantizationError, match="'gptq', which is not served"):
        call(edit(path, quantization_config=BLOCKS[2]))


@CALLS
def test_packed_weights_without_a_block(call: Callable[..., Any], tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[f"{name.removesuffix('weight')}qweight"] = tensors.pop(name).to(torch.int32)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QuantizationError, match=r"down_proj\.qweight is part of packed weights"):
        call(path)


@CALLS
@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({}, "1 rows.*states neither num_labels nor id2label, so there are 2; set num_labels to 1"),
        ({"num_labels": 3}, "1 rows.*says that there are 3; set num_labels to 1"),
    ],
)
def test_rows_of_a_head_and_labels(
    call: Callable[..., Any], stated: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path, _ = tiny_llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors["score.weight"] = torch.ones(1, 48)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    edit(path, architectures=["LlamaForSequenceClassification"], **stated)
    with pytest.raises(ConfigError, match=f"num_labels: score.weight has {says}"):
        call(path)
    call(edit(path, num_labels=1))
