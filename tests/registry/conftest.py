"""Fake site-packages as fixtures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry.sites import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder that is searched for distributions, and not importable."""
    return Site(tmp_path / "site")


@pytest.fixture
def other_site(tmp_path: Path) -> Site:
    """A second one."""
    return Site(tmp_path / "other")


@pytest.fixture
def live_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An importable folder; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(site.folder))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(site.folder):
            del sys.modules[name]
    importlib.invalidate_caches()
