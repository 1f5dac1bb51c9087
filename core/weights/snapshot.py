"""Snapshot: what an update may change on one model, kept so that it can be put back bit for bit.

Plain parameters and buffers are copied; state that a quantization method derived is only held, for
a method derives anew and never changes in place what it derived before. So a snapshot of packed
weights costs their size once, and only as long as the update runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .completion import has_method


class Snapshot:
    """The state of some modules, now.

    Args:
        modules: whose own parameters, buffers and derived state are kept.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Copy and hold."""
        copies: dict[int, Tensor] = {}
        self._modules = [_State(module, copies) for module in modules]

    def put_back(self) -> None:
        """Every module as it was: the same parameter objects with the same values."""
        with torch.inference_mode():
            for state in self._modules:
                state.put_back()


class _State:
    """One module.

    Args:
        module: whose.
        copies: of tensors that several modules share, by identity.
    """

    def __init__(self, module: nn.Module, copies: dict[int, Tensor]) -> None:
        self._module = module
        self._parameters, self._buffers = dict(module._parameters), dict(module._buffers)
        self._derived = dict(vars(_method(module))) if has_method(module) else {}
        self._values: list[tuple[Tensor, Tensor]] = []
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            if tensor is not None and not tensor.is_meta:
                if id(tensor) not in copies:
                    copies[id(tensor)] = tensor.detach().clone()
                self._values.append((tensor, copies[id(tensor)]))

    def put_back(self) -> None:
        """Objects, then values, then what was derived from them."""
        self._module._parameters.clear()
        self._module._parameters.update(self._parameters)
        self._module._buffers.clear()
        self._module._buffers.update(self._buffers)
        for tensor, values in self._values:
            tensor.detach().copy_(values)
        if has_method(self._module):
            derived = vars(_method(self._module))
            derived.clear()
            derived.update(self._derived)


def _method(module: nn.Module) -> Any:
    return module.quant_method
