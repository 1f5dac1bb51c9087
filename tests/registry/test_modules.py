"""Finding modules without importing any."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from archzoo.registry.modules import locate, source_of, submodules

EXIT = "import os\nos._exit(3)\n"  # a module that is imported ends the test run


@pytest.fixture(autouse=True)
def nothing_imported() -> Iterator[None]:
    before = set(sys.modules)
    yield
    assert {name for name in set(sys.modules) - before if name.startswith("pkg")} == set()


def write(folder: Path, *files: str, text: str = EXIT) -> Path:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found(name: str, *places: Path) -> ModuleSpec:
    spec = locate(name, [str(place) for place in places])
    assert spec is not None and spec.name == name
    return spec


def below(name: str, *places: Path) -> list[str]:
    return [module for module, _ in submodules(found(name, *places))]


def test_packages_modules_and_sub_packages(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/mod.py", "pkg_plain.py")
    assert found("pkg", tmp_path).origin == str(tmp_path / "pkg/__init__.py")
    assert found("pkg.sub.mod", tmp_path).origin == str(tmp_path / "pkg/sub/mod.py")
    assert source_of(found("pkg_plain", tmp_path)) == EXIT
    for absent in ("pkg.absent", "pkg.sub.mod.deeper", "pkg_plain.x", "absent", "absent.pkg"):
        assert locate(absent, [str(tmp_path)]) is None


@pytest.mark.parametrize(
    "name", ["", ".", "pkg.", ".pkg", "pkg..mod", "../pkg", "p-kg", "pkg/mod", "pkg\0", "pkg mod",
             "/pkg", "pkg.mod.py", "\ud800", "1pkg"],
)  # fmt: skip
def test_names_that_are_no_dotted_names_or_lead_nowhere(name: str, tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/mod.py", "p-kg.py", "1pkg.py")
    assert locate(name, [str(tmp_path), str(tmp_path / "pkg")]) is None


def test_the_first_place_wins_and_bad_places_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a", "pkg_x.py")
    write(tmp_path / "b", "pkg_x.py", "pkg_y.py")
    (tmp_path / "file.zip").write_bytes(b"not a zip")
    bad = [str(tmp_path / "absent"), str(tmp_path / "file.zip"), "nul\0in it"]
    places = [*bad, str(tmp_path / "a"), str(tmp_path / "b")]
    first, second = locate("pkg_x", places), locate("pkg_y", places)
    assert first is not None and first.origin == str(tmp_path / "a/pkg_x.py")
    assert second is not None and second.origin == str(tmp_path / "b/pkg_y.py")
    assert locate("pkg_x", []) is None and locate("pkg_x", bad) is None


def test_the_empty_place_is_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):  # twice: nothing about it may be remembered
        write(tmp_path / folder, f"pkg_{folder}.py")
        monkeypatch.chdir(tmp_path / folder)
        spec = locate(f"pkg_{folder}", [""])
        assert spec is not None and spec.origin == str(tmp_path / folder / f"pkg_{folder}.py")
    assert locate("pkg_a", [""]) is None
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert locate("pkg_a", ["", str(tmp_path / "a")]) is not None


def test_namespaces_of_several_portions_and_below_each_other(tmp_path: Path) -> None:
    write(tmp_path / "a", "pkg/inner/one.py")
    write(tmp_path / "b", "pkg/inner/two.py", "pkg/inner/one.py")
    places = tmp_path / "a", tmp_path / "b"
    inner = found("pkg.inner", *places)
    assert inner.loader is None and source_of(inner) is None
    assert list(inner.submodule_search_locations or ()) == [str(p / "pkg/inner") for p in places]
    assert found("pkg.inner.one", *places).origin == str(tmp_path / "a/pkg/inner/one.py")
    assert below("pkg", *places) == ["pkg.inner", "pkg.inner.one", "pkg.inner.two"]


def test_a_package_later_on_the_path_hides_a_namespace_before_it(tmp_path: Path) -> None:
    write(tmp_path / "a", "pkg/one.py")
    write(tmp_path / "b", "pkg/__init__.py")
    assert below("pkg", tmp_path / "a", tmp_path / "b") == []


def test_zip_files(tmp_path: Path) -> None:
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pkg/__init__.py", "")
        file.writestr("pkg/sub/__init__.py", "")
        file.writestr("pkg/sub/mod.py", "x = '\xe9'\n")
    assert below("pkg", archive) == ["pkg.sub", "pkg.sub.mod"]
    assert source_of(found("pkg.sub.mod", archive)) == "x = '\xe9'\n"


def test_extensions_and_compiled_files_have_no_source(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", f"pkg/fast{EXTENSION_SUFFIXES[0]}", "pkg/bare.pyc")
    assert below("pkg", tmp_path) == ["pkg.bare", "pkg.fast"]
    assert source_of(found("pkg.fast", tmp_path)) is None
    assert source_of(found("pkg.bare", tmp_path)) is None


def test_what_the_interpreter_carries_cannot_be_shadowed(tmp_path: Path) -> None:
    write(tmp_path, "sys.py", "time/__init__.py")
    for name in ("sys", "time"):
        spec = found(name, tmp_path)
        assert spec.origin == "built-in" and source_of(spec) is None
        assert list(submodules(spec)) == []


def test_the_standard_library_is_read_like_any_other() -> None:
    spec = locate("json", sys.path)
    assert spec is not None and "json.decoder" in [name for name, _ in submodules(spec)]
    assert "class JSONDecoder" in (source_of(locate("json.decoder", sys.path) or spec) or "")


def test_source_is_decoded_as_it_declares(tmp_path: Path) -> None:
    (tmp_path / "pkg_bom.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    (tmp_path / "pkg_bad.py").write_bytes(b"\n\nx = '\xe9'\n")
    (tmp_path / "pkg_odd.py").write_bytes(b"# coding: no-such-codec\n")
    assert source_of(found("pkg_bom", tmp_path)) == "x = 1\n"
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        source_of(found("pkg_bad", tmp_path))
    with pytest.raises(SyntaxError):
        source_of(found("pkg_odd", tmp_path))


class Finder:
    """A finder as editable installs put on ``sys.meta_path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, object]] = []

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        self.asked.append((name, path))
        file = self.folder / "__init__.py"
        return spec_from_file_location(name, file) if name == "pkg_edit" else None


class Broken:
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        raise RuntimeError(name)


class Legacy:
    """Predates find_spec."""


def test_finders_of_editable_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "src/__init__.py", "src/mod.py")
    finder = Finder(tmp_path / "src")
    monkeypatch.setattr(sys, "meta_path", [Broken(), Legacy(), *sys.meta_path, finder])
    assert found("pkg_edit").origin == str(tmp_path / "src/__init__.py")
    assert below("pkg_edit") == ["pkg_edit.mod"]
    assert finder.asked == [("pkg_edit", None), ("pkg_edit", None)]
    assert locate("pkg_edit.none", []) is None
    assert finder.asked[-1] == ("pkg_edit.none", [str(tmp_path / "src")])


def test_the_path_comes_before_editable_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "src/__init__.py", "pkg_edit.py")
    monkeypatch.setattr(sys, "meta_path", [Finder(tmp_path / "src"), *sys.meta_path])
    assert found("pkg_edit", tmp_path).origin == str(tmp_path / "pkg_edit.py")


def test_the_whole_tree_in_order_and_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path / "pkg",
        "__init__.py", "b.py", "a/__init__.py", "a/z.py", "a/tests/test_a.py", "a_b.py",
        "not-a-module.py", "x.y.py", "README", "notes.txt", "__pycache__/b.cpython-311.pyc",
        "folder.py/inner.py", ".hidden.py", "b/shadowed.py",
    )  # fmt: skip
    assert below("pkg", tmp_path) == [
        "pkg.a", "pkg.a.tests", "pkg.a.tests.test_a", "pkg.a.z", "pkg.a_b", "pkg.b",
    ]  # fmt: skip


def test_links_make_no_loops_and_no_second_copies(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/real/mod.py", "pkg/other/__init__.py", "out/x.py")
    for link, target in {
        "pkg/a_self": "pkg", "pkg/real/up": "pkg/real", "pkg/real/across": "pkg/other",
        "pkg/other/back": "pkg/real", "pkg/a_link": "pkg/real", "pkg/out1": "out",
        "pkg/out2": "out", "out/again": "out", "out/home": "pkg", "pkg/dangling": "absent",
    }.items():  # fmt: skip
        (tmp_path / link).symlink_to(tmp_path / target, target_is_directory=True)
    (tmp_path / "pkg/loop.py").symlink_to("loop.py")
    (tmp_path / "pkg/loop").symlink_to("loop")
    assert below("pkg", tmp_path) == [
        "pkg.other", "pkg.out1", "pkg.out1.x", "pkg.real", "pkg.real.mod",
    ]  # fmt: skip


def test_a_package_reached_by_a_link_is_whole(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/__init__.py", "elsewhere/sub/mod.py")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/pkg").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert below("pkg", tmp_path / "site") == ["pkg.sub", "pkg.sub.mod"]


def test_depth_is_not_bounded_by_the_interpreters_stack(tmp_path: Path) -> None:
    deep = tmp_path.joinpath("pkg", *["d"] * 120)
    deep.mkdir(parents=True)
    spec = found("pkg", tmp_path)
    limit, depth = sys.getrecursionlimit(), len(traceback.extract_stack())
    try:
        sys.setrecursionlimit(depth + 80)
        count = sum(1 for _ in submodules(spec))
    finally:
        sys.setrecursionlimit(limit)
    assert count == 120


def test_a_folder_that_may_not_be_listed_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/mod.py")

    def refuse(place: str) -> list[str]:
        raise PermissionError(place)

    spec = found("pkg", tmp_path)
    monkeypatch.setattr(os, "listdir", refuse)
    assert list(submodules(spec)) == []


def test_real_editable_namespace_and_import_agree(tmp_path: Path) -> None:
    """What is located is what an import then takes, in a fresh interpreter."""
    write(tmp_path, "ns/inner/mod.py", "ns/inner/pack/__init__.py", text="")
    code = (
        "import sys, importlib\n"
        "from archzoo.registry.modules import locate\n"
        "for name in ('ns.inner.mod', 'ns.inner.pack', 'json.decoder', 'os', 'math'):\n"
        "    spec = locate(name, sys.path)\n"
        "    assert spec.origin == importlib.import_module(name).__spec__.origin, name\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_files_added_later_are_seen(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py")
    assert below("pkg", tmp_path) == []
    write(tmp_path, "pkg/mod.py")
    importlib.invalidate_caches()
    assert below("pkg", tmp_path) == ["pkg.mod"]
