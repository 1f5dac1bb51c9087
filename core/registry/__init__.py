"""Which class serves an architecture, found in metadata before any plugin code runs.

::

    entries       one entry_points.txt -> claims and faults, line by line
    scan          installed distributions, each read on its own
    requirements  what a distribution needs, against what is installed
    provider      one claim on an architecture, with its state and reasons
    index         Catalog: every claim, under the settings
    resolution    a checkpoint's architecture names -> one provider -> its class

Nothing here imports torch, transformers or safetensors, and only ``resolve`` imports a plugin:
the one module that serves the architecture asked for.
"""

from __future__ import annotations

from .index import Catalog, Problem, catalog
from .provider import Provider, ProviderState, Reason, ReasonCode
from .resolution import resolve, resolve_from

__all__ = [
    "Catalog",
    "Problem",
    "Provider",
    "ProviderState",
    "Reason",
    "ReasonCode",
    "catalog",
    "resolve",
    "resolve_from",
]
