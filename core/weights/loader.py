"""AutoWeightsLoader: plan first, then bytes, then the proof; strict always."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeGuard, cast

from torch import Tensor, nn

from ..errors import WeightError
from .execution import Execution, Progress
from .parameters import ParameterTable
from .plan import LoadPlan, Planner
from .remap import NameMap
from .report import WeightReport
from .skip_rules import argument_rules
from .source import IterableSource, TensorInfo, WeightSource, source_tensors_equal
from .ties import Ties

Weights = WeightSource | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
"""What can be loaded from: an open source, a state dict, or (name, tensor) pairs."""


class AutoWeightsLoader:
    """Fills a model from a checkpoint, or says exactly why it cannot.

    Every checkpoint tensor ends loaded, tied, skipped by a named rule, or in a fault; every
    parameter element is written exactly once. All that headers can show is checked before the
    first write, so a refused checkpoint leaves the model untouched.

    A submodule with a ``load_weights(weights)`` of its own is handed the full tensors under its
    prefix, as (relative name, tensor), and returns the names of the parameters it wrote (or a
    WeightReport). The model's own ``load_weights`` is never called from here.

    Args:
        model: parameters are ``ShardedParameter``s, or plain ones that every rank holds whole.
        skip_prefixes: names that start with these components are left out.
        skip_substrs: names that contain these components, in a row, are left out.
        ignore_unexpected_suffixes: tensors without a parameter are left out when their name
            ends in these components.
        name_map: checkpoint names to parameter names; None when they are equal.
        ties: tied parameter -> the parameter it shares elements with. Parameters that are one
            object need no entry.

    Raises:
        WeightError: a skip argument or a tie that makes no sense.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        skip_prefixes: Iterable[str] = (),
        skip_substrs: Iterable[str] = (),
        ignore_unexpected_suffixes: Iterable[str] = (),
        name_map: NameMap | None = None,
        ties: Mapping[str, str] | None = None,
    ) -> None:
        """Look at the model's parameters; see the class for the arguments."""
        self._model = model
        self._names = name_map or NameMap()
        self._table = ParameterTable(model)
        self._ties = Ties(self._table, ties or {})
        self._skips = (
            *argument_rules("skip_prefixes", skip_prefixes),
            *argument_rules("skip_substrs", skip_substrs),
            *argument_rules("ignore_unexpected_suffixes", ignore_unexpected_suffixes),
        )
        self._delegates = _self_loading(model)

    def plan(self, infos: Mapping[str, TensorInfo], mapper: NameMap | None = None) -> LoadPlan:
        """Where everything would go. Reads no tensor; the model may be on ``meta``."""
        names = mapper or self._names
        return Planner(self._table, names, self._ties, self._skips, self._delegates).plan(infos)

    def load_weights(
        self,
        weights: Weights,
        mapper: NameMap | None = None,
        progress: Progress | None = None,
    ) -> WeightReport:
        """Fill the model.

        Args:
            weights: an open source (stays open), or (name, tensor) pairs.
            mapper: name rules for this load instead of the loader's.
            progress: called with (bytes done, bytes to do) of this rank.

        Returns:
            The report, without faults.

        Raises:
            CoverageError: anything missing, partial, unexpected, duplicate, of another shape or
                kind, or tied and different; carries the report.
            WeightError: the model is on ``meta``, or a source breaks its own word.
        """
        started = time.perf_counter()
        source = _as_source(weights)
        plan = self.plan(source.infos(), mapper)
        _check_ties(source, plan)
        run = Execution(self._model, self._table, source, plan)
        if not plan.findings.any_fault:
            run.write(progress)
            run.delegate(self._delegates)
            run.prove()
        report = plan.findings.report(
            source.description,
            source.notes,
            run.parameter_names,
            run.bytes_read,
            time.perf_counter() - started,
        )
        report.raise_for_faults()
        run.process_weights()
        return report


def _as_source(weights: Weights) -> WeightSource:
    if _is_source(weights):
        return weights
    if isinstance(weights, Mapping):
        return IterableSource(cast(Mapping[str, Tensor], weights).items())
    if isinstance(weights, Iterable):
        return IterableSource(weights)
    raise WeightError(
        f"cannot read weights from {type(weights).__name__}; pass open_source(path) or pairs"
    )


def _is_source(weights: object) -> TypeGuard[WeightSource]:
    return all(callable(getattr(weights, name, None)) for name in ("infos", "read"))


def _self_loading(model: nn.Module) -> dict[str, nn.Module]:
    """Outermost submodules that load themselves, by prefix."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{prefix}.") for prefix in found)
        if name and not inside and callable(getattr(module, "load_weights", None)):
            found[name] = module
    return found


def _check_ties(source: WeightSource, plan: LoadPlan) -> None:
    """Compare stored copies of tied tensors; the only bytes read before the first write."""
    for check in plan.tie_checks:
        if source_tensors_equal(source, check.tensor, check.fed_by):
            plan.findings.fates[check.tensor] = "tied"
            plan.findings.tied[check.tensor] = check.tied_to
        else:
            plan.findings.tensor_fault("tie", check.tensor, check.fault)
