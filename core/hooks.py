"""Hooks: what a plugin may answer and observe beyond the classes it offers.

A plugin names a module, or an object in one, under the entry-point group ``archzoo.plugins`` and
marks its implementations with ``hookimpl``::

    from archzoo.hooks import hookimpl

    @hookimpl
    def archzoo_model_loaded(model, report):
        print(report)

Hooks and arguments are only ever added, and each addition raises ``HOOKS_VERSION``. A plugin that
needs an addition says so with ``ARCHZOO_HOOKS_VERSION = 2`` in its module; an older archzoo then
leaves the whole plugin out, with a reason, instead of calling half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Protocol

import pluggy

if TYPE_CHECKING:
    from .runtime import Model
    from .weights import WeightReport

__all__ = ["HOOKS_VERSION", "PROJECT", "HookSpecs", "HookWarning", "hookimpl"]

PROJECT = "archzoo"
HOOKS_VERSION = 1

hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)


class HookWarning(UserWarning):
    """An observer did not run, or failed; the model it should have seen is not affected."""


class HookSpecs(Protocol):
    """Every hook there is. An implementation may take fewer of the arguments."""

    @_hookspec
    def archzoo_architectures(self) -> Mapping[str, str | type]:
        """Architectures known only at run time.

        Asked after installed metadata has no answer, every plugin in turn; entry points are
        the way for whatever is known before.

        Returns:
            Architecture as in config.json -> ``"module:Class"``, or the class itself.
        """
        ...

    @_hookspec
    def archzoo_model_loaded(self, model: Model, report: WeightReport) -> None:
        """Observe a model that ``archzoo.load`` has finished.

        Runs for models that the plugin's own distribution serves, and for all others only where
        the user lists the distribution in ``ARCHZOO_OBSERVERS``.

        Args:
            model: the loaded model.
            report: where each checkpoint tensor ended.
        """
        ...

    @_hookspec
    def archzoo_load_failed(self, path: str | PathLike[str], error: Exception) -> None:
        """Observe an ``archzoo.load`` that raised; runs for the same models as its counterpart.

        Args:
            path: the checkpoint as it was given to ``archzoo.load``.
            error: what is raised to the caller after all observers have run.
        """
        ...
