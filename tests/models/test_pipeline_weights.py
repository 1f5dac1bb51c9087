"""Weights of pipeline stages: each reads its own, and every tensor is somebody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import archzoo
from archzoo.config import read_config
from archzoo.context import BuildContext
from archzoo.errors import CoverageError
from archzoo.models import DecoderBase
from archzoo.parallel import Topology
from tiny import tiny_llama

LAYERS = 12
"""More than ten: layer 1 is not layer 10 or 11."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Twelve layers on disk, untied and tied."""
    return {
        tied: tiny_llama(
            tmp_path_factory.mktemp(f"tied-{tied}"),
            num_hidden_layers=LAYERS,
            hidden_size=24,
            intermediate_size=42,
            tie_word_embeddings=tied,
        )[0]
        for tied in (False, True)
    }


def stages_of(path: Path, pp: int, tp: int = 1, tp_rank: int = 0) -> list[DecoderBase]:
    topology = Topology(tp=tp, pp=pp)
    return [
        archzoo.build(
            read_config(path), BuildContext.of(topology.at(stage * tp + tp_rank), poison=True)
        )
        for stage in range(pp)
    ]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pp", [2, 5])
def test_each_stage_reads_its_own_tensors_and_nothing_else(
    checkpoints: dict[bool, Path], pp: int, tied: bool
) -> None:
    stored = load_file(checkpoints[tied] / "model.safetensors")
    read: list[str] = []
    for stage in stages_of(checkpoints[tied], pp):
        report = archzoo.load_weights(stage, checkpoints[tied])
        assert set(report.loaded) | set(report.elsewhere) == set(stored)
        assert not set(report.loaded) & set(report.elsewhere)
        assert report.bytes_read == sum(stored[name].nbytes for name in report.loaded)
        numbers = {int(n.split(".")[2]) for n in report.loaded if ".layers." in n}
        assert numbers == set(stage.model.stage.layers)
        assert f"on other pipeline stages: {len(report.elsewhere)}" in str(report)
        read += report.loaded
    twice = {name for name in read if read.count(name) > 1}
    assert twice == ({"model.embed_tokens.weight"} if tied else set())
    assert set(read) == set(stored)


@pytest.mark.parametrize("tp", [1, 3])
def test_the_last_stage_fills_its_own_rows_of_a_tied_head(
    checkpoints: dict[bool, Path], tp: int
) -> None:
    """130 ids padded to 192 over three ranks: ranks hold 64, 64, 2 real rows."""
    path = checkpoints[True]
    embedding = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    for tp_rank in range(tp):
        stages = stages_of(path, 2, tp, tp_rank)
        first, last = [archzoo.load_weights(stage, path) for stage in stages]
        assert first.tied == {}
        assert last.tied == {"lm_head.weight": "model.embed_tokens.weight"}
        held = dict(stages[1].named_parameters())
        head: Any = stages[1].lm_head
        head.quant_method.restore_weights_before_loading(head)
        rows, start = head.weight.data, tp_rank * head.weight.shape[0]
        real = embedding[start : start + rows.shape[0]]
        assert torch.equal(rows[: real.shape[0]], real), f"rows of tp rank {tp_rank}"
        assert not rows[real.shape[0] :].any(), "padding is zero"
        assert "model.embed_tokens.weight" not in held
        assert "lm_head.weight" not in dict(stages[0].named_parameters())


def test_one_stage_keeps_one_storage(checkpoints: dict[bool, Path]) -> None:
    (model,) = stages_of(checkpoints[True], 1)
    report = archzoo.load_weights(model, checkpoints[True])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert report.elsewhere == () and report.tied == {"lm_head.weight": "model.embed_tokens.weight"}


def rewritten(path: Path, to: Path, **changes: Tensor | None) -> Path:
    """A copy of a checkpoint with tensors added, replaced, or (None) taken away."""
    to.mkdir()
    (to / "config.json").write_text((path / "config.json").read_text())
    stored: dict[str, Any] = load_file(path / "model.safetensors") | {
        name.replace("__", "."): tensor for name, tensor in changes.items()
    }
    kept = {name: tensor.clone() for name, tensor in stored.items() if tensor is not None}
    save_file(kept, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.parametrize("pp", [1, 2, 3])
def test_a_tied_head_stored_beside_the_embedding(
    checkpoints: dict[bool, Path], tmp_path: Path, pp: int
) -> None:
    embedding = load_file(checkpoints[True] / "model.safetensors")["model.embed_tokens.weight"]
    same = rewritten(checkpoints[True], tmp_path / "same", lm_head__weight=embedding)
    other = rewritten(checkpoints[True], tmp_path / "other", lm_head__weight=embedding + 1)
    stages = stages_of(same, pp)
    for stage in stages:
        archzoo.load_weights(stage, same)
    for stage in (stages_of(other, pp)[0], stages_of(other, pp)[-1]):
        with pytest.raises(CoverageError, match="hold different values"):
            archzoo.load_weights(stage, other)
    for stage in stages_of(other, pp)[1:-1]:
        assert "lm_head.weight" in archzoo.load_weights(stage, other).elsewhere


@pytest.mark.parametrize("pp", [1, 2])
def test_only_the_head_of_a_tied_pair_stored(
    checkpoints: dict[bool, Path], tmp_path: Path, pp: int
) -> None:
    embedding = load_file(checkpoints[True] / "model.safetensors")["model.embed_tokens.weight"]
    changes = {"lm_head__weight": embedding, "model__embed_tokens__weight": None}
    path = rewritten(checkpoints[True], tmp_path / "head-only", **changes)
    stages = stages_of(path, pp)
    for stage in stages:
        archzoo.load_weights(stage, path)
    stored: Any = stages[0].model.embed_tokens
    assert torch.equal(stored.weight.data[:130], embedding)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("model.layers.1.self_attn.nonsense.weight", {0}),
        ("model.layers.10.self_attn.nonsense.weight", {2}),
        ("model.layers.12.input_layernorm.weight", {0, 1, 2}),
        ("model.nonsense.weight", {0, 1, 2}),
        ("lm_head.nonsense", {2}),
        ("model.embed_tokens.nonsense", {0}),
    ],
)
def test_a_tensor_no_stage_wants_is_unexpected_on_some_stage(
    checkpoints: dict[bool, Path], tmp_path: Path, name: str, stages: set[int]
) -> None:
    change = {name.replace(".", "__"): torch.zeros(2)}
    path = rewritten(checkpoints[False], tmp_path / "more", **change)
    refused = set()
    for at, stage in enumerate(stages_of(path, 3)):
        try:
            archzoo.load_weights(stage, path)
        except CoverageError as error:
            assert [fault.name for fault in error.report.unexpected] == [name]
            assert "12" not in name or "0 to 11, no 12" in str(error)
            refused.add(at)
    assert refused == stages


@pytest.mark.parametrize(
    "name", ["model.layers.1", "model.layers.11", "model.embed_tokens", "model.norm"]
)
def test_a_missing_tensor_is_missed_by_the_stage_that_needs_it(
    checkpoints: dict[bool, Path], tmp_path: Path, name: str
) -> None:
    stored = load_file(checkpoints[False] / "model.safetensors")
    gone: dict[str, Tensor | None] = {
        each.replace(".", "__"): None for each in stored if each.startswith(f"{name}.")
    }
    assert gone
    path = rewritten(checkpoints[False], tmp_path / "less", **gone)
    stages = stages_of(path, 3)
    refused = []
    for stage in stages:
        try:
            archzoo.load_weights(stage, path)
        except CoverageError as error:
            assert all(fault.name.startswith(f"{name}.") for fault in error.report.missing)
            refused.append(stage)
    owner = {"model.layers.1": 0, "model.layers.11": 2, "model.embed_tokens": 0, "model.norm": 2}
    assert refused == [stages[owner[name]]]
