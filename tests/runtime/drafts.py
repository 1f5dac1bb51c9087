"""A target, and drafts of every quality for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import eagle3
import torch
from safetensors.torch import load_file, save_file

import archzoo
from archzoo.runtime.speculative.drafter import Drafter
from tiny import ids_of, tiny_llama

LAYERS = 3
PROMPTS = [ids_of(9), ids_of(1), ids_of(30), ids_of(3)]


def write(folder: Path) -> None:
    """A target; the same with noise; another vocabulary; a head with and one without embedding."""
    path, _ = tiny_llama(folder / "target", num_hidden_layers=LAYERS)
    noisy(path, folder / "noisy", 0.1)
    tiny_llama(folder / "other", seed=4, num_hidden_layers=1)
    tiny_llama(folder / "foreign", vocab_size=131, num_hidden_layers=1)
    eagle3.save(folder / "head", eagle3.SIZES, eagle3.weights(eagle3.SIZES, seed=2))
    lent = eagle3.weights(eagle3.SIZES, embedding=False)
    eagle3.save(folder / "lent", eagle3.SIZES, lent)


def noisy(source: Path, path: Path, share: float, **changes: Any) -> Path:
    """A copy of a checkpoint whose weights have moved by so much of their size."""
    generator = torch.Generator().manual_seed(0)
    path.mkdir()
    config = json.loads((source / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    moved = {
        name: tensor + share * tensor.std() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(moved, path / "model.safetensors", {"format": "pt"})
    return path


def load(path: Path, **options: Any) -> archzoo.Model:
    """In float64, its pool full of NaN: what nobody wrote must reach nothing."""
    model = archzoo.load(path, **{"dtype": torch.float64, "kv_slots": 512, **options})
    for runner in model.engine.runners:
        for spec in runner.pool.layout.specs:
            layer = runner.pool.layer(spec.layer_id)
            assert layer is not None
            layer.k.fill_(torch.nan)
            layer.v.fill_(torch.nan)
    return model


def tokens(results: Sequence[Any]) -> list[list[int]]:
    return [result.token_ids for result in results]


def all_free(*models: archzoo.Model) -> bool:
    """Whether nobody holds a slot or a table row."""
    return all(
        lane.slots.available == model.engine.limits.pool.slots
        and len(lane.draft_rows) == model.engine.limits.max_requests
        and not lane.requests
        for model in models
        for lane in model.engine.lanes
    )


@contextmanager
def proposals() -> Iterator[list[tuple[list[int], list[int]]]]:
    """Collects (tokens that stood, tokens proposed) of all requests."""
    seen: list[tuple[list[int], list[int]]] = []
    plain = Drafter.propose

    def propose(self: Drafter, requests: Sequence[Any]) -> None:
        plain(self, requests)
        seen.extend((list(r.tokens), list(r.proposal)) for r in requests if r.proposal)

    Drafter.propose = propose  # type: ignore[method-assign]  # put back below
    try:
        yield seen
    finally:
        Drafter.propose = plain  # type: ignore[method-assign]  # as above
