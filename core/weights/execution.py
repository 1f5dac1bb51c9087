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
from .copying import Copied, Copier
from .ledger import Ledger
from .parameters import ParameterTable
from .parts import Part, parts_of
from .plan import LoadPlan
from .report import WeightReport
from .source import FileSource, WeightSource
from .values import ValueCheck
from .workers import work_through

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes to do)."""
PARALLEL_BYTES = 32 << 20
"""Less than this is copied by the calling thread: it takes a few milliseconds."""
MOST_THREADS = 8
"""Threads that copy, at most; more seldom read faster."""


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
        self._fills = isinstance(source, FileSource)
        self._parts = [(p, tuple(parts_of(p, cut=self._fills))) for p in plan.placements]
        writes = (p.parameter for p, parts in self._parts for _ in parts or (None,))
        self._completion = Completion(model, table, writes)
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
        self._restore()
        self._refuse_meta()
        total = sum(placement.nbytes for placement, _ in self._parts)
        tell: Progress = progress or (lambda done, total: None)

        def take_in(copied: Copied) -> None:
            self._take_in(copied, check)
            tell(self.bytes_read, total)

        tell(0, total)
        with torch.inference_mode():
            for placement, parts in self._parts:
                self.ledger.touch(placement.parameter)  # in this order, whoever is written first
                if not parts:
                    self._complete(placement.parameter)
            copier = Copier(self._source, self._table, check)
            work_through(copier.copy, self._queues(), take_in, self._threads(total))

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

    def _queues(self) -> list[list[Part]]:
        """Parts to copy in storage order, those of each file together."""
        queues: dict[str, list[Part]] = {}
        for placement, parts in self._parts:
            queues.setdefault(placement.tensor.file, []).extend(parts)
        return list(queues.values())

    def _threads(self, nbytes: int) -> int:
        """How many threads copy: as many as torch may use, where that is worth starting them."""
        if not self._fills or nbytes < PARALLEL_BYTES:
            return 1
        if any(p.device.type != "cpu" for p in self._table.parameters.values()):
            return 1
        return min(torch.get_num_threads(), MOST_THREADS)

    def _take_in(self, copied: Copied, check: ValueCheck | None) -> None:
        """Enter what was copied; a parameter that has all its parts is completed."""
        part, tensor = copied.part, copied.part.tensor
        self.ledger.read(tensor.name, part.source)
        self._record(part.parameter, part.target, tensor.name)
        self.bytes_read += part.nbytes
        if copied.overflow and self._plan.findings.fates[tensor.name] != "dtype":
            dtype = self._table.parameters[part.parameter].dtype
            wider = torch.bfloat16 if dtype is torch.float16 else tensor.dtype
            text = f"{tensor.name}: values beyond {dtype}'s range; load as {wider}"
            self._plan.findings.tensor_fault("dtype", tensor.name, text)
        if check is not None and copied.sight is not None:
            check.enter(part, copied.sight)
        self._complete(part.parameter)

    def _complete(self, parameter: str) -> None:
        """One part less to wait for; with the last one, pad and finish."""
        if self._completion.whole(parameter):
            self._pad(parameter)
            self._finish(self._completion.modules(parameter))

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
