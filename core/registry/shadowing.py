"""Whether what Python imports for a claim is what its distribution installed."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from .index import Catalog
from .provider import Provider
from .scan import Plugin


class Displaced(NamedTuple):
    """Another file that serves in place of a distribution's own.

    Args:
        problem: which file, and what it displaces.
        owners: the plugins that installed it; empty when none did.
    """

    problem: str
    owners: str


def displaced(provider: Provider, source: Catalog) -> Displaced | None:
    """What serves in place of a provider's own package or module; None where nothing does.

    Args:
        provider: the claim.
        source: the catalog it came from.
    """
    plugin = source.installed(provider)
    if plugin is None:
        return None
    return _hidden(provider, source, plugin) or _overwritten(provider, source, plugin)


def _hidden(provider: Provider, source: Catalog, plugin: Plugin) -> Displaced | None:
    """The package is found in a place that comes earlier on ``sys.path``."""
    top = provider.module.partition(".")[0]
    loaded = _place_of(top)
    for relative in _files_of(top) if loaded else ():
        own = plugin.installed_file(relative)
        if own and loaded and not _same_file(own, loaded):
            owners = _owners(source, plugin, relative, loaded)
            by = f" (installed by {owners})" if owners else ""
            return Displaced(
                f"package {top} is imported from {loaded}{by}, which hides {own}", owners
            )
    return None


def _overwritten(provider: Provider, source: Catalog, plugin: Plugin) -> Displaced | None:
    """Another plugin installed a file of that name later; pip lets it."""
    for relative in _files_of(provider.module):
        file = plugin.installed_file(relative)
        if file and _is_changed(file, plugin.record[relative]):
            owners = _owners(source, plugin, relative, file)
            if owners:
                return Displaced(f"{file} is not its own, {owners} wrote over it", owners)
    return None


def _files_of(module: str) -> tuple[str, str]:
    path = module.replace(".", "/")
    return f"{path}/__init__.py", f"{path}.py"


def _is_changed(file: str, recorded: str) -> bool:
    """Whether a file differs from what was installed; an edit by hand does too."""
    if not recorded:
        return False
    from base64 import urlsafe_b64encode  # nothing but a claim that serves is looked at
    from hashlib import sha256

    try:
        with open(file, "rb") as opened:
            digest = sha256(opened.read()).digest()
    except OSError:
        return False  # the import has told already
    return recorded != f"sha256={urlsafe_b64encode(digest).decode().rstrip('=')}"


def _owners(source: Catalog, plugin: Plugin, relative: str, file: str) -> str:
    """Labels of the other plugins that installed a file."""
    labels = (
        other.installed.label
        for other in source.installation.plugins
        if other is not plugin
        and other.installed_file(relative)
        and _same_file(other.installed_file(relative), file)
    )
    return " and ".join(labels)


def _place_of(top: str) -> str | None:
    """The file that a top-level package or module is imported from."""
    if top in sys.modules:
        return getattr(sys.modules[top], "__file__", None)
    from .modules import locate  # only failed imports need it

    spec = locate(top, sys.path)
    return spec.origin if spec is not None else None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.normpath(one) == os.path.normpath(other)
