"""Attention backends and quantization methods: entry points keyed by name, resolved like models."""

from __future__ import annotations

from .decision import Verdict, decide
from .groups import Group
from .index import Catalog, catalog
from .loading import load_class
from .provider import ProviderState
from .resolution import current_catalog, refusal, refuse_if_strict


def implementation(group: Group, name: str, source: Catalog | None = None) -> type | None:
    """The class that a plugin registers under a name; None when none does.

    Args:
        group: which kind of name.
        name: compared exactly.
        source: the catalog to choose from; this process's when None.

    Raises:
        RegistryError: plugins register it and none can serve, or several do.
        PluginLoadError: its module does not import, or lacks the class.
        MissingDependency: an optional dependency of the plugin is not installed.
    """
    known = current_catalog((name,), group) if source is None else source
    refuse_if_strict(known, None)
    decision = decide(known, (name,), group)
    if decision.provider is not None:
        return load_class(decision.provider, known)
    if decision.verdict is Verdict.UNKNOWN:
        return None
    raise refusal(decision)


def ready_names(group: Group) -> tuple[str, ...]:
    """Names of a group that some plugin here can serve, sorted.

    Args:
        group: which kind of name.
    """
    providers = catalog().providers(group)
    return tuple(
        dict.fromkeys(each.name for each in providers if each.state is ProviderState.READY)
    )
