"""One scan serves every question, until something is asked for that may have come since."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import DisabledArchitectureError, RegistryError, UnknownArchitectureError
from archzoo.registry import Group, ProviderState
from archzoo.registry.places import Metadata
from archzoo.registry.scan import find_copies

CLASS = "class A: pass\n"
pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every scan."""
    counted: list[int] = []

    def counting(path: Sequence[str]) -> dict[str, list[Metadata]]:
        counted.append(len(path))
        return find_copies(path)

    monkeypatch.setattr("archzoo.registry.installation.find_copies", counting)
    return counted


def settle(site: Site) -> None:
    """Let time pass: what is installed next changes the folder's time on every file system."""
    os.utime(site.folder, (1_000_000_000, 1_000_000_000))


def test_one_scan_for_every_way_to_ask(live_site: Site, scans: list[int]) -> None:
    for name in ("one", "two"):  # packages: bytecode of a plain module would change the folder
        live_site.install(name, {"ZqA": f"zq_{name}:A", f"Zq{name}": f"zq_{name}:A"},
                          files={f"zq_{name}/__init__.py": CLASS})  # fmt: skip
    found = registry.resolve("Zqone")
    assert registry.resolve(["ZqNobody", "Zqone"]) is found
    for chosen in ("one", "two"):
        assert registry.resolve("ZqA", prefer={"ZqA": chosen}).__module__ == f"zq_{chosen}"
    with pytest.raises(DisabledArchitectureError):
        registry.resolve("Zqone", disabled=["Zqone"])
    with pytest.raises(RegistryError):
        registry.resolve("Zqone", prefer={"Zqone": "two"})
    with pytest.raises(UnknownArchitectureError):
        registry.resolve("ZqNobody")
    assert registry.implementation(Group.QUANTIZATION, "zq-nothing") is None
    assert registry.ready_names(Group.MODELS) and registry.catalog().names(Group.PLUGINS) == ()
    assert len(scans) == 1


def test_changed_variables_scan_nothing(
    live_site: Site, scans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    live_site.install("one", {"ZqA": "zq_v:A"}, files={"zq_v/__init__.py": CLASS})
    registry.resolve("ZqA")
    monkeypatch.setenv("ARCHZOO_DISABLED_MODEL_ARCHS", "ZqA")
    with pytest.raises(DisabledArchitectureError):
        registry.resolve("ZqA")
    assert len(scans) == 1


def test_installed_between_two_questions(live_site: Site, scans: list[int]) -> None:
    settle(live_site)
    with pytest.raises(UnknownArchitectureError):
        registry.resolve("ZqNew")
    live_site.install("new", {"ZqNew": "zq_new:A"}, files={"zq_new.py": CLASS})
    assert registry.resolve("ZqNew").__module__ == "zq_new"
    assert len(scans) == 2
    assert registry.resolve("ZqNew").__module__ == "zq_new" and len(scans) == 2


def test_a_miss_scans_again_once_and_only_for_a_change(live_site: Site, scans: list[int]) -> None:
    settle(live_site)
    for expected in (1, 1):
        with pytest.raises(UnknownArchitectureError):
            registry.resolve("ZqNobody")
        assert len(scans) == expected
    (live_site.folder / "unrelated.txt").write_text("")
    for expected in (2, 2):
        with pytest.raises(UnknownArchitectureError):
            registry.resolve("ZqNobody")
        assert len(scans) == expected


def test_what_is_served_is_served_without_a_look(live_site: Site, scans: list[int]) -> None:
    live_site.install("one", {"ZqA": "zq_w:A"}, files={"zq_w.py": CLASS})
    settle(live_site)
    registry.resolve("ZqA")
    live_site.install("two", {"ZqB": "zq_w:A"})
    registry.resolve("ZqA")
    assert len(scans) == 1


def test_the_fix_of_a_skip_works_in_the_same_process(live_site: Site) -> None:
    live_site.install("plug", {"ZqA": "zq_fix:A"}, requires=["zq-dep"], files={"zq_fix.py": CLASS})
    settle(live_site)
    with pytest.raises(UnknownArchitectureError, match="run: pip install zq-dep"):
        registry.resolve("ZqA")
    live_site.install("zq-dep")
    assert registry.resolve("ZqA").__module__ == "zq_fix"


def test_a_method_installed_between_two_questions(live_site: Site) -> None:
    settle(live_site)
    assert registry.implementation(Group.QUANTIZATION, "zqq") is None
    live_site.install("q", {"zqq": "zq_q:A"}, group=Group.QUANTIZATION, files={"zq_q.py": CLASS})
    found = registry.implementation(Group.QUANTIZATION, "zqq")
    assert found is not None and found.__module__ == "zq_q"
    assert "zqq" in registry.ready_names(Group.QUANTIZATION)


@pytest.mark.parametrize("looked_at", [False, True])
def test_uninstalled_between_two_questions(live_site: Site, looked_at: bool) -> None:
    info = live_site.install("plug", {"ZqA": "zq_gone:A"})
    settle(live_site)
    assert "ZqA" in registry.catalog().architectures()
    if looked_at:
        assert registry.catalog().providers_of("ZqA")[0].state is ProviderState.READY
    for file in info.iterdir():
        file.unlink()
    info.rmdir()
    said = "force-reinstall plug" if looked_at else "no installed plugin serves 'ZqA'"
    with pytest.raises(RegistryError, match=said):
        registry.resolve("ZqA")
