"""Findings: what a load has found out so far; becomes the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .report import FAULT_KINDS, Fault, WeightReport


class Findings:
    """Collects the one fate of every checkpoint tensor, and the faults.

    Attributes:
        fates: checkpoint tensor -> ``loaded``, ``tied``, ``skipped``, ``elsewhere`` or a fault
            kind.
        tied: parameter or tensor -> the parameter it shares elements with.
        derived: optional parameters that were left out.
        zeros: matrices all of whose values are zero, in the order in which they were seen.
    """

    def __init__(self) -> None:
        """Nothing found."""
        self.fates: dict[str, str] = {}
        self.tied: dict[str, str] = {}
        self.derived: list[str] = []
        self.zeros: list[str] = []
        self._skipped: dict[str, list[str]] = {}
        self._reasons: dict[str, str] = {}
        self._notes: list[str] = []
        self._converted: Counter[str] = Counter()
        self._faults: dict[str, list[Fault]] = {kind: [] for kind in FAULT_KINDS}

    @property
    def any_fault(self) -> bool:
        """Whether anything is wrong."""
        return any(self._faults.values())

    def loaded(self, tensor: str) -> None:
        """The tensor is written (maybe into several parameters)."""
        self.fates.setdefault(tensor, "loaded")

    def skip(self, tensor: str, rule: str, why: str) -> None:
        """The tensor is left out by a rule, for a reason."""
        self.fates[tensor] = "skipped"
        self._skipped.setdefault(rule, []).append(tensor)
        self._reasons[rule] = why

    def note(self, text: str) -> None:
        """Something the plan found out that a reader of the report should know."""
        self._notes.append(text)

    def zero(self, tensor: str) -> None:
        """All values of a matrix are zero, which is legal and may be a mistake."""
        self.zeros.append(tensor)

    def elsewhere(self, tensors: Iterable[str]) -> None:
        """The tensors are for a module that another pipeline stage holds."""
        self.fates.update(dict.fromkeys(tensors, "elsewhere"))

    def rule_of(self, tensor: str) -> str | None:
        """The rule that left a tensor out, or None."""
        if self.fates.get(tensor) != "skipped":
            return None
        return next(rule for rule, names in self._skipped.items() if tensor in names)

    def tensor_fault(self, kind: str, tensor: str, text: str, status: str = "") -> None:
        """A checkpoint tensor is wrong; that is its fate."""
        self.fates[tensor] = kind
        self._faults[kind].append(Fault(tensor, text, status or kind))

    def parameter_fault(self, kind: str, parameter: str, text: str) -> None:
        """A parameter is wrong."""
        self._faults[kind].append(Fault(parameter, text, kind))

    def converted(self, change: str) -> None:
        """One more tensor changes its float width."""
        self._converted[change] += 1

    def report(
        self,
        source: str,
        notes: Iterable[str],
        parameter_names: Iterable[str] = (),
        bytes_read: int = 0,
        seconds: float = 0.0,
    ) -> WeightReport:
        """The report as of now."""
        faults: Mapping[str, tuple[Fault, ...]] = {
            kind: tuple(found) for kind, found in self._faults.items()
        }
        return WeightReport(
            source=source,
            loaded=tuple(name for name, fate in self.fates.items() if fate == "loaded"),
            tied=dict(self.tied),
            derived=tuple(self.derived),
            skipped={rule: tuple(names) for rule, names in self._skipped.items()},
            skip_reasons=dict(self._reasons),
            converted=dict(self._converted),
            notes=(*notes, *self._notes),
            parameter_names=tuple(parameter_names),
            bytes_read=bytes_read,
            seconds=seconds,
            zeros=tuple(self.zeros),
            elsewhere=tuple(name for name, fate in self.fates.items() if fate == "elsewhere"),
            **faults,
        )
