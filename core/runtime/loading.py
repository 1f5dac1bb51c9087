"""load: from a path to a model that runs. Each step can be had alone: build, load_weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from ..config import ModelConfig
from ..context import BuildContext
from ..errors import InputError
from ..models import DecoderBase
from ..parallel import Topology
from ..parallel.forking import forks
from ..parallel.links import CostTable
from ..planning.plan import Mode
from ..registry import catalog, catalog_for, serve
from ..weights import WeightReport, Weights, format_of, open_source
from .agreement import agreed_costs, check_same_catalog, check_same_model, load_together
from .checkpoint import Checkpoint, local_path
from .engine import Engine, EngineLimits
from .executor import Executor, make_executor
from .memory import check_fits, pool_size
from .model import Model
from .observers import Observation, observing
from .options import (
    check_dtype,
    check_methods,
    check_room,
    device_of,
    dtype_for,
    is_offline,
    sizes_of,
)
from .pipeline import StageRunner
from .reading import as_model, overrides_of, resolve_model
from .resolved import resolve_checkpoint
from .runner import Runner
from .sharing import recompute_after, shared_tokens

LoadProgress = Callable[[int, int], None]
"""(bytes done, bytes to do) of all local ranks; of those to come, as much as of the present one."""


def load(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    topology: Topology | None = None,
    tp: int = 1,
    pp: int = 1,
    attn_dp: int = 1,
    ep: int = 1,
    quantization: str | None = None,
    backend: str | None = None,
    compile: Literal["auto"] | bool = "auto",
    offline: bool | None = None,
    kv_slots: int | None = None,
    max_requests: int = 64,
    prefill_chunk: int | None = None,
    pp_layers: Sequence[int] | None = None,
    pp_micro_batches: int | None = None,
    plan: Mode = "cheapest",
    costs: CostTable | None = None,
    dp_lm_head: bool = False,
    check_values: bool = True,
    prefix_cache: bool = True,
    progress: LoadProgress | None = None,
    target: Model | None = None,
    architecture: str | None = None,
    ignore_fields: Sequence[str] = (),
) -> Model:
    """Load a checkpoint, ready to run.

    With more than one rank: the processes that torchrun started, one rank each; otherwise all
    ranks are simulated in this process.

    Args:
        path: checkpoint directory, .safetensors or .gguf file, or a hub id.
        dtype: of weights and activations; the checkpoint's own when None (float16 becomes
            float32 on a CPU, which has no usable float16 multiplication).
        device: ``cpu`` when None.
        topology: sizes of all axes, instead of tp, pp, attn_dp and ep.
        tp, pp, attn_dp, ep: sizes of the axes.
        quantization: ``none`` takes the weights as plain ones, whatever the config says of a
            method; None as the config says.
        backend: attention backend; ``torch`` when None.
        compile: ``auto`` runs eagerly as long as no compiled path is served; True asks for one.
        offline: never ask the hub; None follows HF_HUB_OFFLINE.
        kv_slots: tokens the KV pool holds; by default several contexts, within memory. Each
            attention group has a pool of its own.
        max_requests: requests under way at once, in each attention group.
        prefill_chunk: prompt tokens of one request in one forward at most.
        pp_layers: layers of each pipeline stage; an even split when None.
        pp_micro_batches: parts of a forward that pass the pipeline one behind the other, at most;
            None decides by its rows.
        plan: how collectives between stages are chosen: the ``cheapest`` for the size of a batch,
            or ``naive``, all-reduces in the same places for every batch.
        costs: of this machine's links and memory; those of rank 0 count. None for the defaults of
            the device.
        dp_lm_head: with ``attn_dp``, split the vocabulary of the head over each attention group
            instead of all ranks of a stage.
        check_values: refuse weights with a NaN or an infinity; every value is looked at while it
            is copied. False looks at a few rows of each matrix only.
        prefix_cache: keep keys and values in free slots, for prompts that begin alike.
        progress: told how many bytes are read.
        target: the model that this one will draft for; lends its embedding to a draft that stores
            none.
        architecture: serves the checkpoint, whatever its config states.
        ignore_fields: dotted names of config fields that are read as if they were not stated.

    Raises:
        ArchzooError: anything that would make the model wrong, by name, before the first token.
    """
    forks.settle()
    sizes, name = sizes_of(topology, tp, pp, attn_dp, ep, pp_layers), backend or "torch"
    check_methods(quantization, name, compile)
    check_room(kv_slots, max_requests, prefill_chunk, pp_micro_batches)
    place, asked = device_of(device, sizes.world_size), check_dtype(dtype)
    overrides = overrides_of(architecture, ignore_fields)
    with observing(path, catalog()) as seen:
        checkpoint = Checkpoint(local_path(path, is_offline(offline)), quantization=quantization)
        try:
            executor = make_executor(sizes, place)
            resolved = resolve_checkpoint(
                checkpoint,
                overrides,
                [sizes],
                find=lambda names: _agreed_class(names, executor, seen),
                target=None if target is None else target.engine,
            )
            config, checkpoint.source = resolved.config, resolved.source
            number = dtype_for(asked, config, place)
            check_fits(checkpoint.source, number, place, executor)
            settings = {"plan": plan, "dp_lm_head": dp_lm_head}
            costs = agreed_costs(costs, executor)
            contexts = [
                resolved.context(
                    executor.topology.at(rank),
                    communicators=executor.communicators(rank),
                    dtype=number,
                    device=place,
                    costs=costs,
                    **settings,
                )
                for rank in executor.ranks
            ]
            modules = [resolved.build(ctx) for ctx in contexts]
            equal: dict[str, object] = {**settings, "dtype": number, "backend": name}
            equal |= {"max_requests": max_requests, "prefill_chunk": prefill_chunk}
            equal |= {"pp_micro_batches": pp_micro_batches, "prefix_cache": prefix_cache}
            equal["sentence-transformers files"] = resolved.files
            check_same_model(config, modules[0], equal, executor)
            pool = pool_size(modules, executor, place, kv_slots, max_requests)
            shared = shared_tokens(modules, executor) if prefix_cache else 0
            reports = load_together(
                executor, lambda: _fill(modules, checkpoint, check_values, progress)
            )
            noted, unknown = resolved.notes, config.ledger.unknown
            noted += (f"unknown config fields: {', '.join(unknown)}",) if unknown else ()
            reports = [replace(report, notes=(*report.notes, *noted)) for report in reports]
        finally:
            checkpoint.close()
        stages = [
            StageRunner(Runner(module, pool, name, place), ctx.group("pp"), pp_micro_batches)
            for module, ctx in zip(modules, contexts, strict=True)
        ]
        turning = recompute_after(modules[0])
        limits = EngineLimits(pool, max_requests, prefill_chunk, shared, turning)
        engine = Engine(executor, stages, config, limits)
        seen.model = Model(config, checkpoint, engine, reports, files=resolved.files)
    return seen.model


def build(
    config: ModelConfig | Mapping[str, Any],
    ctx: BuildContext,
    *,
    architecture: str | None = None,
    ignore_fields: Sequence[str] = (),
) -> DecoderBase:
    """The architecture's module for one rank, empty; on any device, ``meta`` included.

    Args:
        config: normalised, or the raw dictionary of a config.json.
        ctx: topology and groups, dtype, device. The checkpoint's quantization is the context's
            to give: ``quant_config(config.quantization, names)``.
        architecture, ignore_fields: as for ``load``, of a raw dictionary.

    Raises:
        RegistryError: no class for the architecture.
        ShapeError: the topology does not fit the model.
    """
    if isinstance(config, ModelConfig):
        return _built(resolve_model(config.architectures), config, ctx)
    overrides = overrides_of(architecture, ignore_fields)
    return _built(*overrides.resolve(config), ctx)


def _built(model_class: type[DecoderBase], config: ModelConfig, ctx: BuildContext) -> DecoderBase:
    """The module of one rank, checked."""
    module = model_class(config, ctx)
    module.check_structure()
    return module


def load_weights(
    module: nn.Module, source: str | os.PathLike[str] | Weights, *, check_values: bool = True
) -> WeightReport:
    """Fill a built module from a directory, a file, an open source, or (name, tensor) pairs.

    Args:
        module: of ``build``.
        source: of the weights.
        check_values: as for ``load``.

    Raises:
        CoverageError: anything missing, left over, doubled, of another shape, or of values that
            no model has.
        InputError: the module is none of archzoo's.
    """
    if not isinstance(module, DecoderBase):
        raise InputError(
            f"{type(module).__name__} is no archzoo model; build one with archzoo.build"
        )
    if not isinstance(source, str | os.PathLike):
        return module.load_weights(source, format_of(source), check_values=check_values)
    opened = open_source(source)
    try:
        return module.load_weights(opened, format_of(opened), check_values=check_values)
    finally:
        opened.close()


def _agreed_class(names: Sequence[str], executor: Executor, seen: Observation) -> type[DecoderBase]:
    """The model class of some architectures, the same on every process."""
    seen.source = catalog_for(names)
    check_same_catalog(seen.source, executor)
    served = serve(seen.source, names)
    seen.source, seen.provider = served.source, served.provider
    return as_model(served.found)


def _fill(
    modules: Sequence[DecoderBase],
    checkpoint: Checkpoint,
    check_values: bool,
    progress: LoadProgress | None,
) -> list[WeightReport]:
    """Load every local rank, one after the other: each reads only what is its own."""
    reports: list[WeightReport] = []
    for module in modules:
        before, to_come = sum(report.bytes_read for report in reports), len(modules) - len(reports)

        def told(done: int, total: int, before: int = before, ranks: int = to_come) -> None:
            if progress is not None:
                progress(before + done, before + total * ranks)

        reports.append(
            module.load_weights(
                checkpoint.source, checkpoint.format, told, check_values=check_values
            )
        )
    return reports
