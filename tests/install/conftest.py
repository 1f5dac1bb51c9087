"""Wheels, built and installed once, and environments that see some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from install.environments import Environment, mirror_dependencies
from install.plugins import ALL
from install.wheelhouse import ROOT, build_wheels, install_wheels

Wheels = dict[str, Path]
MakeEnvironment = Callable[..., Environment]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Every wheel of the matrix, by the name it starts with."""
    sources = tmp_path_factory.mktemp("projects")
    ours = [ROOT, *(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
    projects = [*ours, *(plugin.write(sources) for plugin in ALL)]
    return build_wheels(projects, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def core_overlay(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with archzoo's wheel installed."""
    return install_wheels([wheels["archzoo"]], tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def llama_overlay(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with archzoo-llama's wheel installed."""
    return install_wheels([wheels["archzoo_llama"]], tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What archzoo depends on, without archzoo."""
    return mirror_dependencies(tmp_path_factory.mktemp("mirror") / "site-packages")


@pytest.fixture(scope="session")
def make_environment(
    dependencies: Path, tmp_path_factory: pytest.TempPathFactory
) -> MakeEnvironment:
    """Make an environment out of overlays."""

    def make(*overlays: Path) -> Environment:
        return Environment(tmp_path_factory.mktemp("environment"), overlays, dependencies)

    return make


@pytest.fixture(scope="session")
def core_alone(make_environment: MakeEnvironment, core_overlay: Path) -> Environment:
    """archzoo without a plugin; nothing is to be installed into it."""
    return make_environment(core_overlay)


@pytest.fixture(scope="session")
def with_llama(
    make_environment: MakeEnvironment, core_overlay: Path, llama_overlay: Path
) -> Environment:
    """archzoo and its Llama plugin; nothing is to be installed into it."""
    return make_environment(core_overlay, llama_overlay)


@pytest.fixture
def fresh(make_environment: MakeEnvironment, core_overlay: Path) -> Environment:
    """archzoo, and room for what a test installs and removes."""
    return make_environment(core_overlay)


@pytest.fixture
def fresh_with_llama(
    make_environment: MakeEnvironment, core_overlay: Path, llama_overlay: Path
) -> Environment:
    """archzoo, its Llama plugin, and room for what a test installs and removes."""
    return make_environment(core_overlay, llama_overlay)
