"""Fixtures for whoever needs an installed plugin, and what every test may rely on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry.sites import Site


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, though a shell lets what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder that is searched for distributions, and not importable."""
    return Site(tmp_path / "site")


@pytest.fixture
def live_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An importable folder; what was imported from it is forgotten afterwards."""
    with site.importable(monkeypatch):
        yield site
