"""Backends and quantization methods: entry points keyed by name, resolved like models."""

from __future__ import annotations

import sys

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import (
    DuplicateArchitectureError,
    MissingDependency,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from archzoo.registry import Group, ProviderState, ReasonCode, implementation

CLASS = "class A: pass\n"
BOTH = pytest.mark.parametrize("group", [Group.ATTENTION_BACKENDS, Group.QUANTIZATION])
pytestmark = pytest.mark.usefixtures("no_settings")


@BOTH
def test_found_by_exact_name_and_only_in_its_group(live_site: Site, group: Group) -> None:
    live_site.install("p", {"zqf": "zq_named:A"}, group=group, files={"zq_named.py": CLASS})
    live_site.install("m", {"zqm": "zq_named:A"})
    source = live_site.catalog()
    found = implementation(group, "zqf", source)
    assert found is not None and found.__module__ == "zq_named"
    assert registry.implementation(group, "zqf") is found
    others = [each for each in Group if each is not group]
    assert [implementation(each, "zqf", source) for each in others] == [None] * 4
    assert implementation(group, "ZQF", source) is None
    assert implementation(group, "", source) is None and registry.implementation(group, "") is None
    assert implementation(group, "zqm", source) is None
    assert registry.ready_names(group) == ("zqf",)


@BOTH
def test_conflict_and_choice(live_site: Site, group: Group) -> None:
    for name in ("one", "two"):
        live_site.install(name, {"zqf": f"zq_{name}:A"}, group=group,
                          files={f"zq_{name}.py": CLASS})  # fmt: skip
    with pytest.raises(DuplicateArchitectureError) as caught:
        implementation(group, "zqf", live_site.catalog())
    assert f"{group.noun} 'zqf' is claimed by one 1.0 and two 1.0" in str(caught.value)
    assert "ARCHZOO_PREFER=zqf=one" in str(caught.value)
    assert "zq_one" not in sys.modules
    chosen = live_site.catalog(prefer=(("zqf", "two"),))
    found = implementation(group, "zqf", chosen)
    assert found is not None and found.__module__ == "zq_two"
    assert chosen.setting_problems() == ()


@BOTH
def test_skipped_says_what_to_install(live_site: Site, group: Group) -> None:
    live_site.install("p", {"zqf": "zq_s:A"}, requires=["zq-fla>=2"], group=group)
    with pytest.raises(UnknownArchitectureError) as caught:
        implementation(group, "zqf", live_site.catalog())
    assert "no installed plugin serves 'zqf'" in str(caught.value)
    assert "pip install 'zq-fla>=2'" in str(caught.value)
    assert registry.ready_names(group) == ()


@BOTH
def test_broken_names_the_distribution(live_site: Site, group: Group) -> None:
    live_site.install("p", {"a": "zq_b:A", "b": "zq_b:B", "c": "zq_c:A", "d": "nonsense"},
                      group=group, files={"zq_b.py": "A = 3", "zq_c.py": "1/0"})  # fmt: skip
    source = live_site.catalog()
    for name, code in (("a", "not-a-class"), ("b", "name-missing"), ("c", "import-failed")):
        with pytest.raises(PluginLoadError, match="of p 1.0") as caught:
            implementation(group, name, source)
        assert caught.value.code == code
    with pytest.raises(UnknownArchitectureError, match="d of p 1.0 is broken: target 'nonsense'"):
        implementation(group, "d", source)


@BOTH
def test_optional_dependency(live_site: Site, group: Group) -> None:
    live_site.install("p", {"zqf": "zq_o:A"}, requires=["zq-fla; extra == 'x'"], extras=["x"],
                      group=group, files={"zq_o.py": "import zq_fla"})  # fmt: skip
    with pytest.raises(MissingDependency, match="zqf of p 1.0 needs 'zq-fla'.*'p.x.'"):
        implementation(group, "zqf", live_site.catalog())


def test_archzoos_own_name_is_reserved(live_site: Site) -> None:
    live_site.install("p", {"torch": "zq_t:A", "zqf": "zq_t:A"}, group=Group.ATTENTION_BACKENDS,
                      files={"zq_t.py": CLASS})  # fmt: skip
    live_site.install("q", {"torch": "zq_t:A"}, group=Group.QUANTIZATION)
    source = live_site.catalog()
    (taken,) = source.providers_of("torch", Group.ATTENTION_BACKENDS)
    assert taken.state is ProviderState.BROKEN
    assert [reason.code for reason in taken.reasons] == [ReasonCode.NAME_RESERVED]
    assert "'torch' is archzoo's own attention backend" in taken.reason
    with pytest.raises(RegistryError, match="archzoo's own attention backend"):
        implementation(Group.ATTENTION_BACKENDS, "torch", source)
    assert implementation(Group.ATTENTION_BACKENDS, "zqf", source) is not None
    assert implementation(Group.QUANTIZATION, "torch", source) is not None


@BOTH
def test_disabled_architectures_are_no_names_of_other_groups(live_site: Site, group: Group) -> None:
    live_site.install("p", {"zqf": "zq_d:A"}, group=group, files={"zq_d.py": CLASS})
    assert implementation(group, "zqf", live_site.catalog(disabled=frozenset({"zqf"})))


@BOTH
def test_strict(live_site: Site, group: Group) -> None:
    live_site.install("p", {"zqf": "zq_d:A"}, group=group, files={"zq_d.py": CLASS})
    live_site.install("skip", {"A": "a:A"}, requires=["zq-fla"])
    with pytest.raises(RegistryError, match="strict mode .*\n.*A of skip 1.0"):
        implementation(group, "zqf", live_site.catalog(strict=True))
