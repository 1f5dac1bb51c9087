"""Filling: one load or update of one rank's model, planned and free of faults, not yet written."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import nn

from ..parallel import ShardId
from .execution import Execution, Extent, Progress
from .parameters import ParameterTable
from .plan import LoadPlan
from .report import WeightReport
from .snapshot import Snapshot
from .source import WeightSource
from .values import ValueCheck

StoredNames = Mapping[tuple[str, ShardId], str]
"""(parameter, shard) -> the checkpoint name that filled it."""


class Filling:
    """Holds a plan until it is carried out; several ranks plan first, and only then write.

    Args:
        model: to fill.
        table: its parameters.
        source: open.
        plan: of the source on this model.
        extent: how much of the model is meant.
        check_values: look at every value.

    Raises:
        CoverageError: the plan has faults; nothing is written.
    """

    def __init__(
        self,
        model: nn.Module,
        table: ParameterTable,
        source: WeightSource,
        plan: LoadPlan,
        extent: Extent,
        check_values: bool,
    ) -> None:
        """See the class for the arguments."""
        self._model, self._source, self._plan, self._extent = model, source, plan, extent
        self._check: ValueCheck | None = ValueCheck(source, plan.findings, check_values)
        self._run = Execution(model, table, source, plan, extent)
        self._kept: Snapshot | None = None
        self._report(0.0).raise_for_faults()

    @property
    def whole(self) -> bool:
        """Whether it writes every parameter."""
        return self._extent.whole

    @property
    def rederived(self) -> tuple[str, ...]:
        """Modules whose derived state was made again, in module order."""
        done = self._run.processed
        return tuple(name for name, module in self._model.named_modules() if module in done)

    @property
    def stored_names(self) -> StoredNames:
        """What each part of each parameter is called in the source."""
        return {(p.parameter, p.shard_id): p.tensor.name for p in self._plan.placements}

    def scan(self) -> None:
        """Look at the values now, before anything is written, instead of while copying.

        Raises:
            CoverageError: values that no model has.
        """
        assert self._check is not None
        self._check.scan((p.tensor, piece) for p in self._plan.placements for piece in p.pieces)
        self._check = None
        self._report(0.0).raise_for_faults()

    def keep_old(self) -> None:
        """Keep what will be written over, for ``undo``."""
        self._kept = Snapshot(self._extent.modules)

    def undo(self) -> None:
        """Everything as it was at ``keep_old``, bit for bit."""
        assert self._kept is not None
        self._kept.put_back()

    def write(self, progress: Progress | None = None) -> WeightReport:
        """Carry it out.

        Args:
            progress: called with (bytes done, bytes to do).

        Raises:
            CoverageError: what shows only while copying: values, overflow, a tensor that was not
                taken.
            WeightError: the model is on ``meta``, or the source breaks its own word.
        """
        started, run = time.perf_counter(), self._run
        run.write(self._check, progress)
        run.delegate()
        run.prove()
        report = self._report(time.perf_counter() - started)
        report.raise_for_faults()
        run.process_weights()
        return report

    def _report(self, seconds: float) -> WeightReport:
        return self._plan.findings.report(
            self._source.description,
            self._source.notes,
            self._run.parameter_names,
            self._run.bytes_read,
            seconds,
        )
