"""A module that nobody filled refuses to compute, by every way in, until it is filled."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archzoo
from archzoo import BuildContext
from archzoo.errors import SpoiltWeightsError, UnloadedWeightsError, WeightError
from archzoo.forward import ForwardBatch
from archzoo.models import CausalLM
from tiny import ids_of, tiny_llama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("unloaded") / "llama")[0]


def built(checkpoint: Path, **options: Any) -> Any:
    raw = json.loads((checkpoint / "config.json").read_text())
    return archzoo.build(raw, BuildContext.of(**options))


class Averages:
    """Attention of one prompt: the mean of its values."""

    name, padded_rows = "averages", "zero"

    def bind(self, specs: Any) -> dict[int, Any]:
        return {}

    def plan(self, batch: ForwardBatch) -> None:
        return None

    def forward(self, q: Tensor, k: Any, v: Tensor, *facts: Any) -> Tensor:
        return v.mean(0).repeat_interleave(q.shape[1] // v.shape[1], 0).expand(q.shape)


def computed(module: CausalLM) -> Tensor:
    """Logits of one prompt by an engine of one's own."""
    backend = Averages()
    module.bind(backend)
    batch = ForwardBatch.external(backend)
    with torch.no_grad():
        logits = module(torch.tensor(ids_of(5)), torch.arange(5), batch).next_token_logits
    assert isinstance(logits, Tensor)
    return logits


WAYS_IN: dict[str, Callable[[Any], object]] = {
    "forward": computed,
    "backbone": lambda module: module.model(
        torch.tensor([1, 2]), torch.arange(2), ForwardBatch.external(Averages())
    ),
    "embed": lambda module: module.embed(torch.tensor([1, 2])),
    "head": lambda module: module.head(torch.ones(1, module.config.hidden_size)),
    "partial update": lambda module: module.prepare_update({}),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_an_unloaded_module_refuses(checkpoint: Path, way: str) -> None:
    module = built(checkpoint)
    for shell in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with pytest.raises(UnloadedWeightsError, match=r"module\.weights_ready\(\)"):
            WAYS_IN[way](shell)


def by_loop(module: Any, full: Any) -> None:
    for name, parameter in module.named_parameters():
        parameter.data.copy_(full.get_parameter(name))
    module.weights_ready()


FILLED: dict[str, Callable[[Any, Any, Path], object]] = {
    "load_weights": lambda module, full, path: archzoo.load_weights(module, path),
    "loader": lambda module, full, path: module.loader().load_weights(
        archzoo.weights.open_source(path)
    ),
    "load_state_dict": lambda module, full, path: module.load_state_dict(full.state_dict()),
    "own loop": lambda module, full, path: by_loop(module, full),
}


@pytest.mark.parametrize("way", FILLED)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_filled_module_computes(checkpoint: Path, way: str, device: str) -> None:
    full = built(checkpoint)
    archzoo.load_weights(full, checkpoint)
    module = built(checkpoint, device=device)
    if device == "meta":
        with pytest.raises(WeightError, match="on the meta device"):
            module.weights_ready()
        module.to_empty(device="cpu")
    FILLED[way](module, full, checkpoint)
    twin, want = copy.deepcopy(module), computed(full)
    for each in (module, twin):
        torch.testing.assert_close(computed(each), want)


@pytest.mark.parametrize("way", ["load_state_dict", "own loop"])
def test_a_module_that_has_run_computes_with_what_is_written_next(
    checkpoint: Path, way: str
) -> None:
    """Packed copies of the old values do not stay."""
    first, second = built(checkpoint), built(checkpoint)
    archzoo.load_weights(first, checkpoint)
    second.load_state_dict({name: value * 1.01 for name, value in first.state_dict().items()})
    model = archzoo.load(checkpoint, kv_slots=32)
    model.logits(ids_of(5))  # packs
    if way == "own loop":
        with pytest.raises(WeightError, match="packed, and are plain again"):
            FILLED[way](model.module, second, checkpoint)
        with pytest.raises(SpoiltWeightsError):
            computed(model.module)
    FILLED[way](model.module, second, checkpoint)
    torch.testing.assert_close(computed(model.module), computed(second))


def test_half_a_state_is_not_taken_for_a_whole_one(checkpoint: Path) -> None:
    module = built(checkpoint)
    values = {name: torch.ones_like(value) for name, value in module.state_dict().items()}
    del values["model.norm.weight"]
    module.load_state_dict(values, strict=False)
    with pytest.raises(UnloadedWeightsError):
        computed(module)
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight"):
        module.load_state_dict(values)
    with pytest.raises(SpoiltWeightsError, match="RuntimeError"):
        computed(module)
    archzoo.load_weights(module, checkpoint)
    assert computed(module).isfinite().all()
    module.to_empty(device="cpu")
    with pytest.raises(UnloadedWeightsError):
        computed(module)
