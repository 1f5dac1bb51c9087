"""The most bytes that tensors made by a call hold at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Counts storages from the operation that makes them until nothing holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            key = storage._cdata
            if key not in before and key not in self.held:
                self.held[key] = storage.nbytes()
                weakref.finalize(storage, self.held.pop, key, None)
        self.most = max(self.most, sum(self.held.values()))
        return out


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def most_live_bytes(call: Callable[[], object]) -> int:
    """What tensors made in the call hold together, at its worst moment; its result included."""
    with torch.inference_mode(), _Watch() as watch:
        result = call()
    del result
    return watch.most
