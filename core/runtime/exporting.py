"""export_weights: checkpoint tensors put together again from the slices of all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import WeightError
from ..models import DecoderBase, name_map
from ..parallel import Box, box_slices
from ..weights import Exporter, Ledger
from .engine import Engine


@dataclass
class _Assembly:
    """One tensor, and which rank gives each box of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    givers: dict[Box, int] = field(default_factory=dict)


def export_weights(engine: Engine, parameter: str | None = None) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by checkpoint name, whole (collective, also while iterating).

    Args:
        engine: whose ranks.
        parameter: only what fills this one; None for all.

    Raises:
        WeightError: a tensor that the ranks together do not hold, or two that have one name.
        SpoiltWeightsError: an update had ended half-way.
    """
    with engine.turns.take():
        engine.require_weights()
        modules = [runner.module for runner in engine.runners]
        exporters = dict(zip(engine.executor.ranks, map(_exporter, modules), strict=True))
        mine = [
            json.dumps([asdict(each) for each in rank.offers(parameter)])
            for rank in exporters.values()
        ]
        texts = [text for process in engine.executor.everyones(mine) for text in process]
        assemblies = _assemble([json.loads(text) for text in texts])
        return _tensors(engine, exporters, assemblies, _versions(engine))


def _versions(engine: Engine) -> list[int]:
    """How often the weights of each local rank were written."""
    return [runner.module.weight_state.version for runner in engine.runners]


def _exporter(module: DecoderBase) -> Exporter:
    names = name_map(type(module), "hf")
    return Exporter(module, names, module.weight_state.names, module.ties)


def _assemble(offers: list[list[dict[str, Any]]]) -> dict[str, _Assembly]:
    """Who gives what, from the offers of every rank in rank order; the first rank gives a copy."""
    found: dict[str, _Assembly] = {}
    ledger = Ledger()
    for rank, each in enumerate(offers):
        for offer in each:
            name, shape = offer["name"], tuple(offer["shape"])
            assembly = found.setdefault(name, _Assembly(shape, getattr(torch, offer["dtype"])))
            for pairs in offer["boxes"]:
                box: Box = tuple((start, stop) for start, stop in pairs)
                if box not in assembly.givers:
                    assembly.givers[box] = rank
                    rival = ledger.write(name, box, f"rank {rank}")
                    if rival is not None:
                        raise WeightError(f"{name}: {rival} and rank {rank} overlap in {pairs}")
    for name, assembly in found.items():
        ledger.touch(name)
        gap = ledger.unwritten(name, assembly.shape)
        if gap:
            raise WeightError(
                f"{name}: no rank holds {gap} elements of {list(assembly.shape)}; its layer's shard "
                "specs do not cover it"
            )
    return found


def _tensors(
    engine: Engine,
    exporters: dict[int, Exporter],
    assemblies: dict[str, _Assembly],
    versions: Sequence[int],
) -> Iterator[tuple[str, Tensor]]:
    for name, assembly in assemblies.items():
        with engine.turns.take():
            full = _tensor(engine, exporters, versions, name, assembly)
        yield name, full


def _tensor(
    engine: Engine,
    exporters: dict[int, Exporter],
    versions: Sequence[int],
    name: str,
    assembly: _Assembly,
) -> Tensor:
    """One of them, with the turn; versions are those of the weights when the export began."""
    if _versions(engine) != versions:
        raise WeightError(
            f"the weights were updated before {name} was exported; take all tensors of an export "
            "before the next update"
        )
    full = torch.empty(assembly.shape, dtype=assembly.dtype, device=engine.runners[0].device)
    for box, rank in assembly.givers.items():
        read = partial(_read, exporters, rank, name, box)
        full[box_slices(box)] = engine.executor.of_rank(rank, read)
    return full


def _read(exporters: dict[int, Exporter], rank: int, name: str, box: Box) -> Tensor:
    return exporters[rank].read(name, box)
