"""AutoWeightsLoader: plan first, then bytes, then the proof; strict always."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard, cast

from torch import Tensor, nn

from ..errors import WeightError
from .execution import Extent, Progress
from .filling import Filling
from .layouts import Layouts
from .parameters import ParameterTable, self_loading
from .plan import LoadPlan, Planner
from .remap import NameMap
from .report import WeightReport
from .skip_rules import argument_rules
from .source import IterableSource, TensorInfo, WeightSource, source_tensors_equal
from .ties import Ties
from .update import Partial, PartialPlanner
from .values import all_zero

Weights = WeightSource | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
"""What can be loaded from: an open source, a state dict, or (name, tensor) pairs."""


class AutoWeightsLoader:
    """Fills a model from a checkpoint, or says exactly why it cannot.

    Every checkpoint tensor ends loaded, tied, skipped by a named rule, left to another pipeline
    stage, or in a fault; every parameter element is written exactly once. All that headers can
    show is checked before the first write, so a refused checkpoint leaves the model untouched.

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
        self._delegates = self_loading(model)

    def plan(self, infos: Mapping[str, TensorInfo], mapper: NameMap | None = None) -> LoadPlan:
        """Where everything would go. Reads no tensor; the model may be on ``meta``."""
        return self.planner(mapper).plan(infos)

    def planner(self, mapper: NameMap | None = None, layouts: Layouts | None = None) -> Planner:
        """What plans loads of this model; for many ranks in one process they share layouts."""
        names = mapper or self._names
        return Planner(self._table, names, self._ties, self._skips, self._delegates, layouts)

    def load_weights(
        self,
        weights: Weights,
        mapper: NameMap | None = None,
        progress: Progress | None = None,
        *,
        check_values: bool = True,
    ) -> WeightReport:
        """Fill the model.

        Args:
            weights: an open source (stays open), or (name, tensor) pairs.
            mapper: name rules for this load instead of the loader's.
            progress: called with (bytes done, bytes to do) of this rank.
            check_values: look at every value for NaN and infinity; without it, a few rows of each
                matrix show whether all of it is NaN.

        Returns:
            The report, without faults.

        Raises:
            CoverageError: anything missing, partial, unexpected, duplicate, of another shape or
                kind, tied and different, or of values that no model has; carries the report.
            WeightError: the model is on ``meta``, or a source breaks its own word.
        """
        report = self.prepare(weights, mapper, check_values=check_values).write(progress)
        ready = getattr(self._model, "weights_ready", None)
        if callable(ready):  # a model that computes nothing before it is filled
            ready()
        return report

    def prepare(
        self,
        weights: Weights,
        mapper: NameMap | None = None,
        *,
        partial: Partial | None = None,
        check_values: bool = True,
    ) -> Filling:
        """Plan a load, or a partial update, and check all that headers show; nothing is written.

        Args:
            weights, mapper, check_values: as in ``load_weights``.
            partial: only parameters that tensors come for are written; what may come in part.

        Raises:
            CoverageError: as ``load_weights``, but for values.
        """
        source, names = as_source(weights), mapper or self._names
        if partial is None:
            plan = self.plan(source.infos(), mapper)
            modules = tuple(self._model.modules())
            extent = Extent(frozenset(self._table), modules, self._delegates)
        else:
            arguments = (self._table, names, self._ties, self._skips, self._delegates)
            planner = PartialPlanner(*arguments, partial)
            plan = planner.plan(source.infos())
            extent = self._touched(plan, frozenset(planner.halves))
        _check_stored(source, plan)
        return Filling(self._model, self._table, source, plan, extent, check_values)

    def _touched(self, plan: LoadPlan, halves: frozenset[str]) -> Extent:
        """What a partial plan writes, with the modules that share or derive from it."""
        given = plan.delegated
        delegates = {prefix: each for prefix, each in self._delegates.items() if given[prefix]}
        names = {placement.parameter for placement in plan.placements}
        prefixes = tuple(f"{prefix}." for prefix in delegates)
        names.update(name for name in self._table if name.startswith(prefixes))
        modules = self._table.owners(names)
        return Extent(frozenset(names), modules, delegates, whole=False, halves=halves)


def as_source(weights: Weights) -> WeightSource:
    """An open source as it is; pairs, taken all at once.

    Raises:
        WeightError: neither.
    """
    if _is_source(weights):
        return weights
    if isinstance(weights, Mapping):
        return IterableSource(cast(Mapping[str, Tensor], weights).items())
    if isinstance(weights, Iterable):
        return IterableSource(weights)
    raise WeightError(
        f"cannot read weights from {type(weights).__name__}; pass open_source(path) or pairs"
    )


def format_of(weights: object) -> str:
    """How names are spelled, a key of the name rules; pairs have Hugging Face names."""
    return str(getattr(weights, "format", "hf"))


def _is_source(weights: object) -> TypeGuard[WeightSource]:
    return all(callable(getattr(weights, name, None)) for name in ("infos", "read"))


def _check_stored(source: WeightSource, plan: LoadPlan) -> None:
    """Judge by values what is not written: copies of tied tensors, and biases without a place.

    These are the only bytes read before the first write, and nothing of a checkpoint that is
    refused anyway is read.
    """
    if plan.findings.any_fault:
        return
    for bias in plan.bias_checks:
        if all_zero(source, bias.tensor):
            plan.findings.skip(bias.tensor.name, bias.rule, bias.why)
        else:
            plan.findings.tensor_fault("unexpected", bias.tensor.name, bias.fault)
    for check in plan.tie_checks:
        if source_tensors_equal(source, check.tensor, check.fed_by):
            plan.findings.fates[check.tensor] = "tied"
            plan.findings.tied[check.tensor] = check.tied_to
        else:
            plan.findings.tensor_fault("tie", check.tensor, check.fault)
