"""Fake site-packages as fixtures."""

from __future__ import annotations

import os
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
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the registry is set."""
    for name in list(os.environ):
        if name.startswith(("ARCHZOO_", "SGLANG_")):
            monkeypatch.delenv(name)


@pytest.fixture
def live_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An importable folder; what was imported from it is forgotten afterwards."""
    with site.importable(monkeypatch):
        yield site
