"""Backends by name: the one place that turns a setting into an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from ..errors import BackendUnavailableError
from ..forward import AttentionBackend, KVPool
from ..registry import Group, implementation, ready_names
from .torch_backend import TorchAttention

BackendFactory = Callable[[KVPool], AttentionBackend]
"""What a name stands for: called with the pool whose keys and values are attended to."""

BUILT_IN: Mapping[str, BackendFactory] = MappingProxyType({TorchAttention.name: TorchAttention})
"""Backends that come with archzoo, by name; no plugin can take their names."""


def require_backend(name: str) -> BackendFactory:
    """What makes the named backend: archzoo's own, or a plugin's from ``archzoo.attention_backends``.

    Raises:
        BackendUnavailableError: no backend of that name.
        RegistryError: plugins register one and it cannot be had; says why.
    """
    own = BUILT_IN.get(name)
    if own is not None:
        return own
    found = implementation(Group.ATTENTION_BACKENDS, name)
    if found is None:
        known = ", ".join(sorted({*BUILT_IN, *ready_names(Group.ATTENTION_BACKENDS)}))
        raise BackendUnavailableError(
            f"attention backend {name!r}", "this installation", f"choose one of: {known}"
        )
    missing = [part for part in ("bind", "plan", "forward") if not hasattr(found, part)]
    if missing:
        raise BackendUnavailableError(
            f"attention backend {name!r}",
            f"{found.__module__}.{found.__qualname__}",
            f"it lacks {', '.join(missing)}, see archzoo.attention.AttentionBackend",
        )
    return cast(BackendFactory, found)


def make_backend(name: str, pool: KVPool) -> AttentionBackend:
    """The named backend over a pool.

    Raises:
        BackendUnavailableError: no backend of that name.
        RegistryError: plugins register one and it cannot be had.
    """
    return require_backend(name)(pool)
