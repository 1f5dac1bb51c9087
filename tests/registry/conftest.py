"""Fake site-packages as fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from registry.sites import Site


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
