"""Completion: which modules have all their parameters, while a plan is carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from .parameters import ParameterTable


def has_method(module: nn.Module) -> bool:
    """Whether a quantization method derives something from the module's parameters."""
    return getattr(module, "quant_method", None) is not None


class Completion:
    """Counts down the writes that parameters and the modules that own them still wait for.

    Args:
        model: whose modules; those with a ``quant_method`` are finished when they are whole.
        table: the model's parameters.
        writes: parameter of each write to come.
    """

    def __init__(self, model: nn.Module, table: ParameterTable, writes: Iterable[str]) -> None:
        """Count what is to come."""
        self._writes = Counter(writes)
        self._owners: dict[str, list[nn.Module]] = {}
        self._waiting: Counter[nn.Module] = Counter()
        for module in model.modules():
            if has_method(module):
                for name in table.names_of(module):
                    if name in self._writes:
                        self._owners.setdefault(name, []).append(module)
                        self._waiting[module] += 1

    def whole(self, parameter: str) -> bool:
        """Enter one write; whether it was the parameter's last."""
        self._writes[parameter] -= 1
        return not self._writes[parameter]

    def modules(self, parameter: str) -> list[nn.Module]:
        """Modules that are whole now that this parameter is; asked once for each parameter."""
        done: list[nn.Module] = []
        for module in self._owners.get(parameter, ()):
            self._waiting[module] -= 1
            if not self._waiting[module]:
                done.append(module)
        return done
