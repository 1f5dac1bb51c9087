"""Which class serves an architecture, found in metadata before any plugin code runs.

::

    groups        names of the entry-point groups
    entries       one entry_points.txt -> claims and faults, line by line
    places        where metadata lies     scan   installed distributions, each read on its own
    needs         one Requires-Dist line  requirements   those of a plugin, against what is there
    external      packages that an environment variable names, read as source text
    installation  all of that for one path, read once
    provider      one claim on a name, with its state and reasons
    index         Catalog: every claim, under the settings
    decision      names -> one provider, or why none; pure data
    resolution    resolve: the decision carried out     named  the same for backends and methods
    loading       provider -> class: the only import of plugin code
    late          claims that only running code can tell     hook_plugins  pluggy, isolated
    fingerprint   what two processes must agree on

Nothing here imports torch, transformers or safetensors, and only ``resolve`` imports a plugin:
the one module that serves the architecture asked for.
"""

from __future__ import annotations

from .decision import Decision, Verdict, decide
from .fingerprint import differences, facts, fingerprint
from .groups import Group
from .index import Catalog, catalog
from .named import implementation, ready_names
from .provider import Origin, Problem, Provider, ProviderState, Reason, ReasonCode
from .resolution import Served, catalog_for, resolve, resolve_from, serve

__all__ = [
    "Catalog",
    "Decision",
    "Group",
    "Origin",
    "Problem",
    "Provider",
    "ProviderState",
    "Reason",
    "ReasonCode",
    "Served",
    "Verdict",
    "catalog",
    "catalog_for",
    "decide",
    "differences",
    "facts",
    "fingerprint",
    "implementation",
    "ready_names",
    "resolve",
    "resolve_from",
    "serve",
]
