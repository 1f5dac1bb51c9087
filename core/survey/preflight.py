"""preflight: config and headers in, what every rank would do out. Nothing of a tensor is read.

Every rank is built on ``meta`` and planned with the planner that loads use. Ranks of a stage differ
in slices, layers of a kind in numbers: what decides how a parameter is filled (its shard spec, its
dtype, the form of the tensors for it) is compared in full, and equal cases are worked out once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from ..models import name_map
from ..parallel import Topology
from ..runtime.checkpoint import Checkpoint, local_path
from ..runtime.engine import BATCH_TOKENS
from ..runtime.options import check_dtype, check_quantization, dtype_for, sizes_of
from ..runtime.reading import overrides_of
from ..runtime.request import integer
from ..runtime.resolved import ResolvedCheckpoint, resolve_checkpoint
from ..weights import Layouts, PlacedSource, Routes, Stored, WeightSource, route
from .heads import heads_of
from .memory import Load, memory_of
from .proof import Proof
from .report import PreflightReport, RankReport

_ANY_GPU = torch.device("cuda")
"""Whose choice of dtype is taken: on GPUs every checkpoint runs in its own."""


def preflight(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    topology: Topology | None = None,
    tp: int = 1,
    pp: int = 1,
    attn_dp: int = 1,
    ep: int = 1,
    pp_layers: Sequence[int] | None = None,
    dp_lm_head: bool = False,
    batch: int = 1,
    chunk: int | None = None,
    context: int | None = None,
    memory: int | None = None,
    quantization: str | None = None,
    architecture: str | None = None,
    ignore_fields: Sequence[str] = (),
) -> PreflightReport:
    """Prove from config and headers that a checkpoint fills every rank, and tell what ranks hold.

    Args:
        path: as for ``load``; of a hub id only what was downloaded before. Safetensors files may
            end where their header ends, or be stated by a ``NAME.safetensors.headers.json``.
        dtype: of weights and activations; the checkpoint's own when None, as on GPUs.
        topology: sizes of all axes, instead of tp, pp, attn_dp and ep.
        tp, pp, attn_dp, ep, pp_layers, dp_lm_head: as for ``load``.
        batch: requests at once, all attention groups together.
        chunk: rows of the largest forward in each attention group; None for the engine's own.
        context: tokens of each request; None for what the model is made for.
        memory: bytes that one rank has.
        quantization: as for ``load``.
        architecture, ignore_fields: as for ``load``.

    Returns:
        The report; faults of the checkpoint are its content.

    Raises:
        ArchzooError: a source that cannot be read, a config that is not served, or a topology that
            does not fit the model, as ``load`` says it.
    """
    sizes = sizes_of(topology, tp, pp, attn_dp, ep, pp_layers).at(0)
    load = _load(batch, chunk, sizes)
    for name, value in (("context", context), ("memory", memory)):
        if value is not None:
            integer(name, value, 1)
    check_quantization(quantization)
    asked, overrides = check_dtype(dtype), overrides_of(architecture, ignore_fields)
    # Never ask the hub: it would send the weights as well.
    place = local_path(path, offline=True)
    with closing(Checkpoint(place, headers_only=True, quantization=quantization)) as found:
        resolved = resolve_checkpoint(found, overrides, [sizes], headers_only=True)
        config = resolved.config
        number = dtype_for(asked, config, _ANY_GPU)
        settings = {"dtype": number, "device": "meta", "dp_lm_head": dp_lm_head}
        survey = _Survey(resolved, load, settings)
        ranks = tuple(survey.rank(sizes.at(rank)) for rank in range(sizes.world_size))
        proof = survey.proof
        return PreflightReport(
            path=os.fspath(path),
            source=found.source.description,
            architecture=resolved.model_class.__name__,
            config=config,
            dtype=number,
            topology=sizes,
            load=load,
            context=context,
            memory=memory,
            tensors=found.source.infos(),
            places=_places(found.source),
            routes=survey.routes,
            ranks=ranks,
            found=proof.faults(),
            skipped={rule: tuple(skipped) for rule, skipped in proof.skipped.items()},
            skip_reasons=proof.reasons,
            converted=proof.converted,
            tied=proof.tied,
            derived=tuple(proof.derived),
            notes=(*proof.notes, *resolved.notes),
        )


def _load(batch: int, chunk: int | None, sizes: Topology) -> Load:
    integer("batch", batch, 1)
    integer("chunk", BATCH_TOKENS if chunk is None else chunk, 1)
    return Load(batch, BATCH_TOKENS if chunk is None else chunk, sizes.attn_dp)


def _places(source: WeightSource) -> Mapping[str, Stored]:
    assert isinstance(source, PlacedSource)
    return {name: source.stored(name) for name in source.infos()}


class _Survey:
    """Builds and plans one rank after the other; what they share is found once.

    Attributes:
        routes: where names lead.
        proof: of all ranks so far.
    """

    def __init__(
        self, resolved: ResolvedCheckpoint, load: Load, settings: Mapping[str, Any]
    ) -> None:
        self._resolved, self._source = resolved, resolved.source
        self._load, self._settings = load, settings
        self._layouts = Layouts()
        names = name_map(resolved.model_class, self._source.format)
        self.routes: Routes = route(self._source.infos(), names)
        self.proof = Proof(self.routes)

    def rank(self, place: Topology) -> RankReport:
        """Build and plan the rank at a place."""
        module = self._resolved.build(self._resolved.context(place, **self._settings))
        plan = module.loader(self._source.format).planner(layouts=self._layouts).follow(self.routes)
        found = plan.findings.report(self._source.description, self._source.notes)
        self.proof.enter(place.rank, plan, found)
        return RankReport(
            rank=place.rank,
            layers=module.model.stage.layers,
            heads=heads_of(module),
            memory=memory_of(module, self._load),
            read_bytes=sum(fill.layout.nbytes for fill in plan.fills),
            fills={fill.parameter: fill for fill in plan.fills},
        )
