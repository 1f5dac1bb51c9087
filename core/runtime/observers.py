"""Telling hook plugins how a load ends; none is imported unless the load concerns it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from ..registry import Catalog, Group, Provider
from .model import Model


@dataclass
class Observation:
    """What a load finds out on its way, for those who observe it.

    Attributes:
        source: the catalog the model is resolved from.
        provider: who serves the model; None as long as nobody was found.
        model: the finished model.
    """

    source: Catalog
    provider: Provider | None = None
    model: Model | None = None

    def tell(self, hook: str, **values: object) -> None:
        """Call an observer of the plugins that it concerns; their failures become warnings."""
        if not self.source.names(Group.PLUGINS):
            return
        from ..registry.late import hooks_of  # brings pluggy, which few need

        serving = canonicalize_name(self.provider.distribution) if self.provider else ""
        everywhere = self.source.settings.observers
        hooks_of(self.source).observe(hook, serving=serving, everywhere=everywhere, **values)


@contextmanager
def observing(path: str | os.PathLike[str], source: Catalog) -> Iterator[Observation]:
    """Tell observers whether what happens inside gave a model or failed.

    Args:
        path: the checkpoint, as it was given.
        source: this process's catalog.
    """
    seen = Observation(source)
    try:
        yield seen
    except Exception as error:
        seen.tell("archzoo_load_failed", path=os.fspath(path), error=error)
        raise
    if seen.model is not None:
        seen.tell("archzoo_model_loaded", model=seen.model, report=seen.model.report)
