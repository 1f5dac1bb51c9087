"""The folder core/ and the import name archzoo are one and the same."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import archzoo

ROOT = Path(__file__).parent.parent
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))


def test_link_points_at_core() -> None:
    assert (ROOT / "src/archzoo").resolve() == ROOT / "core", "git config core.symlinks true"


def test_core_is_not_importable_under_its_folder_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import core"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode and "pip install -e ." in done.stderr


def test_types_are_shipped() -> None:
    assert archzoo.__file__ and Path(archzoo.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_is_installed_shipped_and_checked(plugin: Path) -> None:
    package = f"archzoo_{plugin.name}"
    assert (plugin / package / "py.typed").exists() and (plugin / "README.md").exists()
    makefile = (ROOT / "Makefile").read_text()
    assert f"--editable plugins/{plugin.name}" in makefile
    assert f"--outdir dist plugins/{plugin.name}" in makefile
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert package in tools["mypy"]["packages"]
    assert f"plugins/{plugin.name}/{package}" in tools["pyright"]["include"]
    assert package in tools["ruff"]["lint"]["isort"]["known-first-party"]
    assert package in tools["importlinter"]["root_packages"]
    contracts = {each["name"]: each for each in tools["importlinter"]["contracts"]}
    assert package in contracts["core never imports a plugin"]["forbidden_modules"]
    assert package in contracts["plugins never import each other"]["modules"]
    assert package in contracts["plugins stay on the public packages"]["source_modules"]
