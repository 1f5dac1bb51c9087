"""What is in the wheels, and that the matrix sees nothing but wheels."""

from __future__ import annotations

import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from install.conftest import MakeEnvironment, Wheels
from install.environments import Environment
from install.wheelhouse import ROOT
from packaging.requirements import Requirement

PLUGINS = {
    f"archzoo_{file.parent.name}": file.parent / f"archzoo_{file.parent.name}"
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml"))
}
"""Package -> its source."""
PACKAGES = {"archzoo": ROOT / "core", **PLUGINS}


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    (name,) = (name for name in names_in(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(name))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_its_package_and_metadata_alone(wheels: Wheels, package: str) -> None:
    tops = {name.partition("/")[0] for name in names_in(wheels[package])}
    version = metadata_of(wheels[package])["Version"]
    assert tops == {package, f"{package}-{version}.dist-info"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_the_source_is_shipped(wheels: Wheels, package: str) -> None:
    source = PACKAGES[package]
    files = {
        f"{package}/{path.relative_to(source).as_posix()}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {name for name in names_in(wheels[package]) if name.startswith(f"{package}/")}
    assert shipped == files
    assert f"{package}/py.typed" in shipped


def test_data_files_are_shipped(wheels: Wheels) -> None:
    assert any(name.endswith(".json") for name in names_in(wheels["archzoo"]))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_test_and_no_cache_is_shipped(wheels: Wheels, package: str) -> None:
    for name in map(Path, names_in(wheels[package])):
        assert not {"tests", "__pycache__", "core"} & set(name.parts), name
        assert not name.name.startswith(("test_", "conftest")), name


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_accepts_the_core_it_is_built_beside(wheels: Wheels, plugin: str) -> None:
    core = metadata_of(wheels["archzoo"])["Version"]
    required = map(Requirement, metadata_of(wheels[plugin]).get_all("Requires-Dist", []))
    (needed,) = (each for each in required if each.name == "archzoo" and each.marker is None)
    assert needed.specifier.contains(core)
    assert not needed.specifier.contains("99"), "a plugin states the range it was built for"


def test_without_the_wheel_there_is_no_archzoo(make_environment: MakeEnvironment) -> None:
    done = make_environment().python("-c", "import packaging, archzoo")
    assert done.returncode and "No module named 'archzoo'" in done.stderr


def test_archzoo_is_imported_from_the_wheel(with_llama: Environment, core_overlay: Path) -> None:
    file = with_llama.output("-c", "import archzoo; print(archzoo.__file__)").strip()
    assert Path(file) == core_overlay / "archzoo/__init__.py"


def test_core_is_no_top_level_name(core_alone: Environment) -> None:
    done = core_alone.python("-c", "import core")
    assert done.returncode and "No module named 'core'" in done.stderr
