"""The catalog under its settings."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import ConfigError
from archzoo.registry import ProviderState, ReasonCode, index


def test_sorted_by_architecture_then_distribution(site: Site) -> None:
    site.install("zoo-b", {"B": "b:B", "A": "b:A"})
    site.install("zoo-a", {"B": "a:B", "C": "a:C [x]"}, extras=["x"])
    shown = [(p.name, p.distribution, p.target) for p in site.catalog().providers()]
    assert shown == [
        ("A", "zoo-b", "b:A"),
        ("B", "zoo-a", "a:B"),
        ("B", "zoo-b", "b:B"),
        ("C", "zoo-a", "a:C [x]"),
    ]


def test_disabled_names_are_exact(site: Site) -> None:
    site.install("p", {"A": "a:A", "AB": "a:AB", "a": "a:a"})
    states = {p.name: p.state for p in site.catalog(disabled=frozenset({"A"})).providers()}
    assert states == {
        "A": ProviderState.DISABLED,
        "AB": ProviderState.READY,
        "a": ProviderState.READY,
    }


def test_plugins_left_out(site: Site) -> None:
    site.install("My_Plugin", {"A": "a:A"})
    site.install("other", {"B": "b:B"}, requires=["zq-one"])
    catalog = site.catalog(plugins=frozenset({"my-plugin"}))
    a, b = catalog.providers()
    assert a.state is ProviderState.READY and b.state is ProviderState.EXCLUDED
    assert "other is not in ARCHZOO_PLUGINS" in b.reason and "zq-one" not in b.reason
    assert catalog.distributions() == ("my-plugin",)
    assert site.catalog(plugins=frozenset()).distributions() == ()


def test_problems_of_plugins_left_out_are_not_told(site: Site) -> None:
    (site.install("bad") / "entry_points.txt").write_text("[archzoo.models\nA = a:A\n")
    assert len(site.catalog().plugin_problems()) == 1
    assert site.catalog(plugins=frozenset()).plugin_problems() == ()


def test_choice_outranks_defect_and_both_are_told(site: Site) -> None:
    site.install("p", {"A": "nonsense"})
    (provider,) = site.catalog(disabled=frozenset({"A"})).providers()
    assert provider.state is ProviderState.DISABLED
    assert [r.code for r in provider.reasons] == [
        ReasonCode.DISABLED,
        ReasonCode.ENTRY_POINT_INVALID,
    ]
    assert provider.target == ""
    assert str(provider).startswith("A of p 1.0 is disabled: A is in ARCHZOO_DISABLED_MODEL_ARCHS;")


def test_names_in_settings_that_match_nothing(site: Site) -> None:
    site.install("archzoo-llama", {"LlamaForCausalLM": "a:A"})
    catalog = site.catalog(
        disabled=frozenset({"llamaForCausalLM", "LlamaForCausalLM", "zq"}),
        plugins=frozenset({"archzoo-lama", "archzoo-llama"}),
    )
    assert [str(problem) for problem in catalog.setting_problems()] == [
        "ARCHZOO_DISABLED_MODEL_ARCHS: 'llamaForCausalLM' matches no installed architecture; "
        "near names: LlamaForCausalLM",
        "ARCHZOO_DISABLED_MODEL_ARCHS: 'zq' matches no installed architecture; "
        "remove it from that list",
        "ARCHZOO_PLUGINS: 'archzoo-lama' matches no installed plugin; near names: archzoo-llama",
    ]
    assert site.catalog().setting_problems() == ()


def test_reasons_and_providers_travel_between_processes(site: Site) -> None:
    site.install("p", {"A": "a:A"}, requires=["zq-one"])
    (provider,) = site.catalog().providers()
    copy = pickle.loads(pickle.dumps(provider))
    assert copy == provider and copy.state is ProviderState.SKIPPED
    assert hash(copy) == hash(provider)


def test_reason_codes_are_stable() -> None:
    assert {code.name: code.value for code in ReasonCode} == {
        "NOT_SELECTED": "plugin-not-selected",
        "NOT_CHOSEN": "provider-not-chosen",
        "DISABLED": "architecture-disabled",
        "SETTING_UNMATCHED": "setting-unmatched",
        "REQUIREMENT_MISSING": "requirement-missing",
        "REQUIREMENT_VERSION": "requirement-version",
        "CORE_VERSION": "core-version",
        "EXTRA_UNDECLARED": "extra-undeclared",
        "ENTRY_POINT_INVALID": "entry-point-invalid",
        "NAME_RESERVED": "name-reserved",
        "METADATA_INVALID": "metadata-invalid",
        "INSTALLED_TWICE": "installed-twice",
        "EXTERNAL_NOT_FOUND": "external-not-found",
        "MODULE_UNREADABLE": "module-unreadable",
        "DEPENDENCY_MISSING": "dependency-missing",
        "MODULE_MISSING": "module-missing",
        "MODULE_SHADOWED": "module-shadowed",
        "IMPORT_FAILED": "import-failed",
        "IMPORT_EXITED": "import-exited",
        "NAME_MISSING": "name-missing",
        "NOT_A_CLASS": "not-a-class",
        "NOTHING_DECLARED": "nothing-declared",
        "HOOK_LOAD_FAILED": "hook-load-failed",
        "HOOK_INVALID": "hook-invalid",
        "HOOK_VERSION": "hook-version",
        "HOOK_RAISED": "hook-raised",
    }


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget the catalogs of this process before the test and after it."""
    index._catalog_under.cache_clear()
    yield
    index._catalog_under.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_one_catalog_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARCHZOO_DISABLED_MODEL_ARCHS", raising=False)
    first = registry.catalog()
    assert registry.catalog() is first
    monkeypatch.setenv("ARCHZOO_DISABLED_MODEL_ARCHS", "A")
    assert registry.catalog() is not first  # a changed setting is never ignored
    assert registry.catalog().settings.disabled == {"A"}


@pytest.mark.usefixtures("fresh")
def test_a_changed_search_path_is_looked_at(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("zq-late", {"ZqLate": "zq_late:A"})
    before = registry.catalog()
    assert "ZqLate" not in before.architectures()
    monkeypatch.syspath_prepend(str(site.folder))
    assert "ZqLate" in registry.catalog().architectures()
    assert registry.catalog() is registry.catalog()
    sys.path.remove(str(site.folder))
    assert registry.catalog() is before


@pytest.mark.usefixtures("fresh")
def test_bad_setting_is_an_error_not_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_STRICT", "maybe")
    with pytest.raises(ConfigError, match="ARCHZOO_STRICT"):
        registry.catalog()


@pytest.mark.usefixtures("fresh")
def test_second_resolve_scans_nothing(live_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ARCHZOO_PLUGINS", "ARCHZOO_STRICT", "ARCHZOO_DISABLED_MODEL_ARCHS"):
        monkeypatch.delenv(variable, raising=False)
    calls = live_site.folder / "CALLS"
    code = f"with open({str(calls)!r}, 'a') as f: f.write('x')\nclass A: pass\n"
    live_site.install("once", {"ZqOnce": "zq_once:A"}, files={"zq_once.py": code})
    found = registry.resolve("ZqOnce")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("scanned again")

    monkeypatch.setattr("archzoo.registry.scan.find_metadata", refuse)
    assert registry.resolve("ZqOnce") is found is registry.resolve(["ZqOnce"])
    assert calls.read_text() == "x"
    assert sys.modules["zq_once"].A is found
