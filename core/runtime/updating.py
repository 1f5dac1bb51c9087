"""update_weights: new weights for all local ranks, checked on every one before any is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from ..errors import InputError, WeightError
from ..models import DecoderBase
from ..weights import Filling, UpdateMode, UpdateReport, Weights, WeightSource, as_source, format_of
from .agreement import load_together
from .engine import Engine


@dataclass(frozen=True)
class UpdateOptions:
    """How an update is done; see ``Model.update_weights``."""

    mode: UpdateMode = "partial"
    atomic: bool = False
    allow_partial_stacks: bool = False
    check_values: bool = True


def update_weights(engine: Engine, weights: Weights, options: UpdateOptions) -> UpdateReport:
    """Update every local rank (collective).

    Args:
        engine: whose ranks; none of its requests may be under way.
        weights: an open source, or (name, tensor) pairs.
        options: how.

    Raises:
        InputError, WeightError: as ``Model.update_weights``.
    """
    with engine.turns.look():
        _check(engine, options)
    # Taken before the turn: pairs may come from a call of this very model.
    fmt = format_of(weights)
    source = load_together(engine.executor, lambda: as_source(weights))
    with engine.turns.take():
        return _update(engine, source, fmt, options)


def _update(engine: Engine, source: WeightSource, fmt: str, options: UpdateOptions) -> UpdateReport:
    """With the turn."""
    _check(engine, options)
    modules = [runner.module for runner in engine.runners]
    fillings = load_together(
        engine.executor, lambda: _prepare(engine, modules, source, fmt, options)
    )
    engine.forget_prefixes()
    before = [module.weight_state for module in modules]
    try:
        reports = load_together(
            engine.executor,
            lambda: [
                module.fill(filling, fmt) for module, filling in zip(modules, fillings, strict=True)
            ],
        )
    except BaseException as error:
        for module, filling, state in zip(modules, fillings, before, strict=True):
            if options.atomic:
                filling.undo()
                module.weight_state = state
            else:
                module.weight_state = state.spoilt(error)
        raise
    return UpdateReport(
        options.mode,
        options.atomic,
        tuple(dict.fromkeys(name for report in reports for name in report.loaded)),
        tuple(dict.fromkeys(name for report in reports for name in report.parameter_names)),
        tuple(dict.fromkeys(name for filling in fillings for name in filling.rederived)),
        tuple(reports),
    )


def _check(engine: Engine, options: UpdateOptions) -> None:
    if options.mode not in get_args(UpdateMode):
        raise InputError(f"mode={options.mode!r} is neither 'partial' nor 'full'")
    if engine.has_work:
        raise InputError(
            "weights cannot be updated while requests are under way, whose cached keys and values "
            "are the old weights'; finish or abort them first"
        )


def _prepare(
    engine: Engine,
    modules: Sequence[DecoderBase],
    source: WeightSource,
    fmt: str,
    options: UpdateOptions,
) -> list[Filling]:
    """What is to be written on each local rank; nothing is."""
    fillings: list[Filling] = []
    for rank, module in zip(engine.executor.ranks, modules, strict=True):
        try:
            fillings.append(
                module.prepare_update(
                    source,
                    fmt,
                    options.mode,
                    allow_partial_stacks=options.allow_partial_stacks,
                    check_values=options.check_values,
                )
            )
        except WeightError as error:
            error.add_note(f"on rank {rank}; nothing was written")
            raise
    if options.atomic:
        for filling in fillings:
            filling.keep_old()
    return fillings
