"""Distributions read one by one: a fault stays where it is."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo.errors import RegistryError, UnknownArchitectureError
from archzoo.registry import Catalog, ProviderState, ReasonCode, resolve_from
from archzoo.registry.places import Folder, find_metadata
from archzoo.registry.scan import find_copies, read_copy
from archzoo.settings import Settings


def _not_utf8(info: Path) -> None:
    (info / "entry_points.txt").write_bytes(b"[archzoo.models]\nA = a:A\n# \xff\xfe\n")


def _metadata_not_utf8(info: Path) -> None:
    (info / "METADATA").write_bytes(b"Name: bad\nVersion: 1\nAuthor: \xe9\xff\n\n")


def _metadata_gone(info: Path) -> None:
    (info / "METADATA").unlink()


def _metadata_empty(info: Path) -> None:
    (info / "METADATA").write_text("")


def _metadata_without_version(info: Path) -> None:
    (info / "METADATA").write_text("Name: bad\n\nVersion: 1\n")


def _metadata_is_a_loop(info: Path) -> None:
    (info / "METADATA").unlink()
    (info / "METADATA").symlink_to(info / "METADATA")


def _requirement_garbage(info: Path) -> None:
    with (info / "METADATA").open("w") as file:
        file.write("Name: bad\nVersion: 1\nRequires-Dist: numpy >> 1\n\n")


def _requirement_nested(info: Path) -> None:
    marker = "(" * 3000 + "extra == 'x'" + ")" * 3000
    (info / "METADATA").write_text(f"Name: bad\nVersion: 1\nRequires-Dist: numpy; {marker}\n\n")


def _marker_unknown(info: Path) -> None:
    (info / "METADATA").write_text("Name: bad\nVersion: 1\nRequires-Dist: n; moon == 'full'\n\n")


BREAKS = [
    _not_utf8,
    _metadata_not_utf8,
    _metadata_gone,
    _metadata_empty,
    _metadata_without_version,
    _metadata_is_a_loop,
    _requirement_garbage,
    _requirement_nested,
    _marker_unknown,
]


@pytest.mark.parametrize("damage", BREAKS)
def test_broken_distribution_is_told_and_hides_no_other(
    site: Site, damage: Callable[[Path], None]
) -> None:
    damage(site.install("bad", {"A": "a:A"}))
    site.install("aaa-good", {"B": "b:B"})
    site.install("zzz-good", {"C": "c:C"})
    catalog = site.catalog()
    assert [p.state for p in catalog.providers()] == [
        ProviderState.BROKEN,
        ProviderState.READY,
        ProviderState.READY,
    ]
    (bad,) = catalog.providers_of("A")
    assert bad.distribution == "bad" and bad.version in ("1", "1.0")
    assert [reason.code for reason in bad.reasons] == [ReasonCode.METADATA_INVALID]


def test_metadata_that_names_what_is_wrong(site: Site) -> None:
    _requirement_nested(site.install("bad", {"A": "a:A"}))
    (bad,) = site.catalog().providers()
    assert "requirement 'numpy; ((" in bad.reason and len(bad.reason) < 300


def test_unreadable_entry_points_are_a_problem_of_the_distribution(site: Site) -> None:
    info = site.install("bad")
    (info / "entry_points.txt").symlink_to(info / "entry_points.txt")
    site.install("good", {"B": "b:B"})
    catalog = site.catalog()
    assert catalog.architectures() == ("B",)
    (problem,) = catalog.plugin_problems()
    assert problem.source == "bad 1.0" and "entry_points.txt cannot be read" in str(problem)


def test_bad_line_is_a_problem_of_the_distribution(site: Site) -> None:
    info = site.install("half", {"A": "a:A"})
    with (info / "entry_points.txt").open("a") as file:
        file.write("what is this\n")
    catalog = site.catalog()
    assert [p.state for p in catalog.providers()] == [ProviderState.READY]
    assert "'what is this'" in str(catalog.plugin_problems()[0])


def test_distributions_that_are_no_plugins_are_not_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.install("foreign", {"a": "b:c"}, group="console_scripts") / "METADATA").unlink()
    foreign = site.install("binary")
    (foreign / "entry_points.txt").write_bytes(b"[console_scripts]\n\xff\xff\n")
    (foreign / "METADATA").unlink()
    opened: list[str] = []
    original = Folder.read

    def spy(folder: Folder, filename: str) -> str:
        opened.append(filename)
        return original(folder, filename)

    monkeypatch.setattr(Folder, "read", spy)
    catalog = site.catalog()
    assert catalog.providers() == () and catalog.plugin_problems() == ()
    assert set(opened) == {"entry_points.txt"}


def test_empty_and_absent_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = [str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "file")]
    assert find_copies(path) == {}
    assert Catalog([], settings=Settings()).providers() == ()


def test_same_distribution_twice_counts_once_and_first(site: Site, other_site: Site) -> None:
    site.install("My-Plugin", {"A": "new:A"}, version="2.0")
    other_site.install("my_plugin", {"A": "old:A", "Gone": "old:G"}, version="1.0")
    catalog = site.catalog(other_site)
    (provider,) = catalog.providers()
    assert provider.module == "new" and provider.label == "My-Plugin 2.0"
    assert other_site.catalog(site).architectures() == ("A", "Gone")


def test_same_folder_twice_on_the_path(site: Site) -> None:
    site.install("p", {"A": "a:A"})
    assert len(site.catalog(site).providers()) == 1


def test_first_copy_counts_even_without_entry_points(site: Site, other_site: Site) -> None:
    site.install("p")
    other_site.install("p", {"A": "a:A"})
    assert site.catalog(other_site).architectures() == ()


def test_names_that_share_a_beginning_are_not_one_distribution(site: Site) -> None:
    for name in ("foo", "foo-bar", "foo-2bar"):
        site.install(name, {name.replace("-", ""): "m:C"})
    unescaped = site.folder / "foo-baz-1.0.dist-info"
    site.install("foo_baz", {"foobaz": "m:C"}).rename(unescaped)
    assert site.catalog().architectures() == ("foo", "foo2bar", "foobar", "foobaz")


def test_leftover_of_pip_is_no_distribution(site: Site) -> None:
    info = site.install("llama", {"A": "a:A"})
    info.rename(info.with_name("~lama-1.0.dist-info"))
    assert site.catalog().providers() == ()


def test_egg_info_of_a_source_tree(site: Site) -> None:
    egg = site.folder / "old_plugin.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: old-plugin\nVersion: 3\nRequires-Dist: nothere\n\n")
    (egg / "entry_points.txt").write_text("[archzoo.models]\nA = a:A\n")
    site.install("old-plugin", {"A": "a:A"}, version="3")
    (provider,) = site.catalog().providers()
    assert provider.distribution == "old-plugin" and provider.version == "3"


def test_distribution_inside_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("p-1.0.dist-info/METADATA", "Name: p\nVersion: 1.0\n\n")
        archive.writestr("p-1.0.dist-info/entry_points.txt", "[archzoo.models]\nA = a:A\n")
    (provider,) = Catalog([str(tmp_path / "p.zip")], settings=Settings()).providers()
    assert provider.label == "p 1.0" and provider.state is ProviderState.READY


def test_windows_line_ends(site: Site) -> None:
    info = site.install("p", {})
    (info / "METADATA").write_bytes(
        b"Name: p\r\nVersion: 1\r\nRequires-Dist: zq9\r\n\r\nName: x\r\n"
    )
    (info / "entry_points.txt").write_bytes(b"[archzoo.models]\r\nA = a:A\r\n")
    (provider,) = site.catalog().providers()
    assert provider.label == "p 1" and "zq9" in provider.reason


def test_find_installed_in_any_spelling(site: Site, other_site: Site) -> None:
    site.install("Flash.Attn", version="2.1", extras=["Big_Gpu"], requires=["torch"])
    other_site.install("flash-attn", version="9")
    path = [os.fspath(site.folder), os.fspath(other_site.folder)]
    copies = find_copies(path)
    found = read_copy("flash_attn", copies)
    assert found is not None and found.label == "Flash.Attn 2.1"
    assert found.extras == {"big-gpu"} and found.requires == ("torch",)
    assert read_copy("flash", copies) is None


def test_two_metadata_folders_in_one_place(site: Site) -> None:
    """An interrupted upgrade: the higher version is believed, by the order of versions."""
    for version in ("9.0", "10.0rc1", "10.0"):
        site.install("p", {"A": f"v{version.partition('.')[0]}:A"}, version=version)
    catalog = site.catalog()
    (provider,) = catalog.providers()
    assert provider.label == "p 10.0" and provider.state is ProviderState.READY
    (problem,) = catalog.plugin_problems()
    assert problem.source == "p 10.0" and problem.reason.code is ReasonCode.INSTALLED_TWICE
    assert "p-10.0.dist-info and " in str(problem) and "p-9.0.dist-info" in str(problem)
    assert problem.reason.fix == "run: pip install --force-reinstall p"


@pytest.mark.parametrize("versions", [("2.0", "1.0"), ("1.0", "2.0"), ("3banana", "2.0")])
def test_believed_version_does_not_depend_on_the_order_of_files(
    site: Site, monkeypatch: pytest.MonkeyPatch, versions: tuple[str, str]
) -> None:
    for version in versions:
        site.install("p", {"A": f"m{version[0]}:A"}, version=version)
    folders = list(find_metadata([str(site.folder)]))
    for order in (folders, folders[::-1]):
        monkeypatch.setattr("archzoo.registry.scan.find_metadata", lambda _, order=order: order)
        (provider,) = site.catalog().providers()
        assert provider.module == "m2"


def test_folders_of_one_distribution_under_two_spellings(site: Site) -> None:
    site.install("Zq.Plug", {"A": "one:A"}, version="1.0")
    site.install("zq_plug", {"A": "two:A"}, version="1.1")
    catalog = site.catalog()
    (provider,) = catalog.providers()
    assert provider.module == "two" and len(catalog.plugin_problems()) == 1


def test_a_copy_elsewhere_on_the_path_is_no_fault(site: Site, other_site: Site) -> None:
    site.install("p", {"A": "new:A"}, version="1.0")
    other_site.install("p", {"A": "old:A"}, version="2.0")
    catalog = site.catalog(other_site)
    assert catalog.providers()[0].module == "new" and catalog.plugin_problems() == ()
    (plugin,) = catalog.plugins()
    assert plugin.shadowed == (str(other_site.info("p", "2.0")),)
    assert plugin.place == str(site.info("p"))


@pytest.mark.filterwarnings("ignore:ARCHZOO_PREFER. 'bbb' matches no installed plugin")
def test_metadata_that_names_another_distribution(site: Site) -> None:
    """Settings, imports and pip go by the folder; a name that differs must not split them."""
    site.install("aaa", {"A": "a:A"}).joinpath("METADATA").write_text("Name: bbb\nVersion: 1\n\n")
    site.install("ccc", {"A": "c:A"})
    hooks = site.install("ddd", {"x": "d"}, group="archzoo.plugins")
    hooks.joinpath("METADATA").write_text("Name: eee\nVersion: 1\n\n")
    catalog = site.catalog(prefer=(("A", "bbb"),))
    broken, _ = catalog.providers()
    assert broken.distribution == "aaa" and broken.state is ProviderState.BROKEN
    assert "its METADATA names 'bbb', its folder 'aaa'" in broken.reason
    with pytest.raises(RegistryError, match="gives A to bbb, which does not claim it"):
        resolve_from(catalog, "A")
    with pytest.raises(UnknownArchitectureError):  # hooks are asked; this plugin's are not ready
        resolve_from(catalog, "Nobody")
