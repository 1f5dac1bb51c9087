"""Fixtures for whoever needs an installed plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry.sites import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder that is searched for distributions, and not importable."""
    return Site(tmp_path / "site")


@pytest.fixture
def live_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An importable folder; what was imported from it is forgotten afterwards."""
    with site.importable(monkeypatch):
        yield site
