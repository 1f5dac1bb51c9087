"""Execution: the bytes of a plan, entered into a ledger as they are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import WeightError
from ..parallel import box_numel, box_slices, whole
from .completion import Completion, has_method
from .conversion import overflows
from .ledger import Ledger
from .parameters import ParameterTable
from .plan import LoadPlan, Placement
from .report import WeightReport
from .source import WeightSource
from .values import ValueCheck

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes to do)."""


@dataclass(frozen=True)
class Extent:
    """How much of a model is to be filled.

    Args:
        parameters: all that must be written, or all that a partial update touches.
        modules: which hold them; every module of the model for a whole load.
        delegates: modules that load themselves, by prefix.
        whole: every parameter must be written.
        halves: stacked parameters of which some parts are left as they are, on purpose.
    """

    parameters: frozenset[str]
    modules: tuple[nn.Module, ...]
    delegates: Mapping[str, nn.Module]
    whole: bool = True
    halves: frozenset[str] = frozenset()


class Execution:
    """Carries out one plan on one model.

    Args:
        model: to fill.
        table: its parameters.
        source: open.
        plan: without faults.
        extent: how much of the model.

    Attributes:
        ledger: what was in fact read and written.
        bytes_read: checkpoint bytes copied.
        processed: modules whose quantization method has derived what it needs.
    """

    def __init__(
        self,
        model: nn.Module,
        table: ParameterTable,
        source: WeightSource,
        plan: LoadPlan,
        extent: Extent,
    ) -> None:
        """Nothing is read or written yet."""
        self._table, self._source, self._plan, self._extent = table, source, plan, extent
        self.ledger = Ledger()
        self.bytes_read = 0
        self._completion = Completion(model, table, (p.parameter for p in plan.placements))
        self.processed: set[nn.Module] = set()

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Parameters written, in the order of writing."""
        return self.ledger.parameters

    def write(self, check: ValueCheck | None, progress: Progress | None = None) -> None:
        """Copy every slice and zero every padding; finish each module as soon as it is whole.

        Finishing early keeps one module's weights in two layouts at a time, not all of them.

        Args:
            check: looks at the values; None where that was done before.
            progress: called with (bytes done, bytes to do).

        Raises:
            WeightError: a parameter is on ``meta``, or the source gives another slice than asked.
        """
        placements = self._plan.placements
        self._restore()
        self._refuse_meta()
        total = sum(placement.nbytes for placement in placements)
        if progress is not None:
            progress(0, total)
        with torch.inference_mode():
            for placement in placements:
                self._copy(placement, check)
                if progress is not None and placement.nbytes:
                    progress(self.bytes_read, total)
                if self._completion.whole(placement.parameter):
                    self._pad(placement.parameter)
                    self._finish(self._completion.modules(placement.parameter))

    def delegate(self) -> None:
        """Let modules that load themselves do so, and enter what they say they wrote.

        Raises:
            WeightError: a module returns no names.
        """
        for prefix, module in self._extent.delegates.items():
            pending = dict(self._plan.delegated[prefix])
            load = getattr(module, "load_weights")  # noqa: B009  nn.Module's typing lacks it
            result = load(self._hand_out(pending))
            if isinstance(result, WeightReport):
                names: Iterable[str] = result.parameter_names
                self.processed.update(module.modules())
            elif isinstance(result, Iterable) and not isinstance(result, str):
                names = result
            else:
                raise WeightError(
                    f"{prefix}.load_weights returned {type(result).__name__}; it must return the "
                    "names of the parameters it wrote"
                )
            self._enter(prefix, names)
            for relative, tensor in pending.items():
                text = f"{tensor}: {prefix}.load_weights did not take {relative}"
                self._plan.findings.tensor_fault("unexpected", tensor, text)
            if self._extent.whole:
                self._require(prefix)

    def prove(self) -> None:
        """Every parameter of the plan is covered by what was in fact written."""
        planned: Counter[str] = Counter()
        for placement in self._plan.placements:
            planned[placement.parameter] += sum(box_numel(p.target) for p in placement.pieces)
        for parameter, volume in planned.items():
            spec = self._table.spec(parameter)
            shape = tuple(self._table.parameters[parameter].shape)
            gap = self.ledger.unwritten(parameter, shape)
            if parameter in self._extent.halves:
                kept = box_numel(whole(shape)) - volume - sum(map(box_numel, spec.padding))
                gap -= kept
            if gap:
                text = f"{parameter}: {gap} elements of {list(shape)} were not written"
                self._plan.findings.parameter_fault("partial", parameter, text)

    def process_weights(self) -> None:
        """Let the quantization methods that have not yet done so derive what they need."""
        self._finish(filter(has_method, self._extent.modules))

    def _finish(self, modules: Iterable[nn.Module]) -> None:
        """Each module's method derives what it needs, once; plain copies it drops are let go."""
        for module in modules:
            if module in self.processed:
                continue
            self.processed.add(module)
            method: Any = module.quant_method
            method.process_weights_after_loading(module)
            self._table.refresh(module)

    def _restore(self) -> None:
        """Give modules that were loaded before their plain weights back."""
        for module in filter(has_method, self._extent.modules):
            method: Any = module.quant_method
            method.restore_weights_before_loading(module)
            self._table.refresh(module)

    def _refuse_meta(self) -> None:
        for name, parameter in self._table.parameters.items():
            if parameter.is_meta and name in self._extent.parameters:
                raise WeightError(
                    f"{name} is on the meta device and holds no memory; build the model on a real "
                    "device to load weights (a plan works on meta)"
                )

    def _copy(self, placement: Placement, check: ValueCheck | None) -> None:
        tensor, parameter = placement.tensor, self._table.parameters[placement.parameter]
        for piece in placement.pieces:
            values = self._source.read(tensor.name, piece.source)
            target = parameter.data[box_slices(piece.target)]
            if values.shape != target.shape or values.dtype != tensor.dtype:
                raise WeightError(
                    f"{self._source.description} gave {tensor.name}{list(piece.source)} as "
                    f"{values.dtype} {list(values.shape)}, promised {tensor.dtype} "
                    f"{list(target.shape)}; the source is broken"
                )
            target.copy_(values)
            if overflows(values, target):
                text = f"{tensor.name}: values beyond {target.dtype}'s range; load as bfloat16"
                self._plan.findings.tensor_fault("dtype", tensor.name, text)
            if check is not None:
                check.look(tensor, piece.source, values)
            self.ledger.read(tensor.name, piece.source)
            self._record(placement.parameter, piece.target, tensor.name)
            self.bytes_read += tensor.nbytes(piece.source)
        self.ledger.touch(placement.parameter)

    def _pad(self, parameter: str) -> None:
        for box in self._table.spec(parameter).padding:
            self._table.parameters[parameter].data[box_slices(box)].zero_()
            self._record(parameter, box, "padding")

    def _record(self, parameter: str, box: tuple[tuple[int, int], ...], source: str) -> None:
        rival = self.ledger.write(parameter, box, source)
        if rival is not None:
            text = f"{source} and {rival} were both written to {parameter}"
            self._plan.findings.parameter_fault("duplicate", parameter, text)

    def _hand_out(self, pending: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
        """Full tensors of a module that loads itself; takes each off the list as it goes."""
        infos = self._source.infos()
        for relative, tensor in list(pending.items()):
            box = whole(infos[tensor].shape)
            del pending[relative]
            self._plan.findings.loaded(tensor)
            self.ledger.read(tensor, box)
            self.bytes_read += infos[tensor].nbytes(box)
            yield relative, self._source.read(tensor, box)

    def _enter(self, prefix: str, names: Iterable[str]) -> None:
        for name in dict.fromkeys(names):
            parameter = self._table.first_name(f"{prefix}.{name}")
            if parameter in self._table:
                shape = tuple(self._table.parameters[parameter].shape)
                self._record(parameter, whole(shape), f"{prefix}.load_weights")
                continue
            text = f"{prefix}.load_weights says it wrote {name!r}, which is no parameter of it"
            self._plan.findings.parameter_fault("unexpected", f"{prefix}.{name}", text)

    def _require(self, prefix: str) -> None:
        """Parameters of a module that loads itself, which it did not write."""
        written = set(self.ledger.parameters)
        for parameter in self._table:
            if parameter.startswith(f"{prefix}.") and parameter not in written:
                if self._table.spec(parameter).optional:
                    self._plan.findings.derived.append(parameter)
                    continue
                text = f"{parameter}: {prefix}.load_weights did not write it"
                self._plan.findings.parameter_fault("missing", parameter, text)
