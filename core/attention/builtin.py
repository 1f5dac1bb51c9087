"""Backends by name: the one place that turns a setting into an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..errors import BackendUnavailableError
from ..forward import AttentionBackend, KVPool
from .torch_backend import TorchAttention

BUILT_IN: Mapping[str, Callable[[KVPool], AttentionBackend]] = MappingProxyType(
    {TorchAttention.name: TorchAttention}
)
"""Backends that come with archzoo, by name."""


def require_backend(name: str) -> None:
    """Nothing, when there is a backend of that name.

    Raises:
        BackendUnavailableError: no backend of that name.
    """
    if name not in BUILT_IN:
        known = ", ".join(sorted(BUILT_IN))
        raise BackendUnavailableError(
            f"attention backend {name!r}", "this installation", f"choose one of: {known}"
        )


def make_backend(name: str, pool: KVPool) -> AttentionBackend:
    """The named backend over a pool.

    Raises:
        BackendUnavailableError: no backend of that name.
    """
    require_backend(name)
    return BUILT_IN[name](pool)
