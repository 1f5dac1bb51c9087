"""Disabled names and the list of plugins: by variable, by SGLang's variable, by argument."""

from __future__ import annotations

import warnings

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import ConfigError, DisabledArchitectureError, UnknownArchitectureError
from archzoo.registry import resolve_from

CLASS = "class A: pass\n"
OWN, ALIAS = "ARCHZOO_DISABLED_MODEL_ARCHS", "SGLANG_DISABLED_MODEL_ARCHS"
pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def zoo(live_site: Site) -> Site:
    """One plugin with a module that holds two architectures, and one with a third."""
    live_site.install(
        "zoo", {"ZqFooForCausalLM": "zq_zoo.foo:A", "ZqFooModel": "zq_zoo.foo:A"},
        files={"zq_zoo/__init__.py": "", "zq_zoo/foo.py": CLASS},
    )  # fmt: skip
    live_site.install("bar", {"ZqBarForCausalLM": "zq_bar:A"}, files={"zq_bar.py": CLASS})
    return live_site


@pytest.mark.parametrize("variable", [OWN, ALIAS])
def test_by_variable(zoo: Site, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "ZqFooForCausalLM, ZqBarForCausalLM")
    for name in ("ZqFooForCausalLM", "ZqBarForCausalLM"):
        with pytest.raises(DisabledArchitectureError) as caught:
            registry.resolve([name, "ZqFooModel"])
        assert caught.value.setting == variable and variable in str(caught.value)
    assert registry.resolve("ZqFooModel").__module__ == "zq_zoo.foo"


@pytest.mark.parametrize("value", ["", "ZqBarForCausalLM"])
def test_own_variable_outranks_the_alias(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(ALIAS, "ZqFooForCausalLM")
    monkeypatch.setenv(OWN, value)
    assert registry.resolve("ZqFooForCausalLM").__module__ == "zq_zoo.foo"


@pytest.mark.parametrize(
    "given", ["ZqFooForCausalLM", ["ZqFooForCausalLM"], iter(["ZqFooForCausalLM"])]
)
def test_by_argument(zoo: Site, given: list[str]) -> None:
    with pytest.raises(DisabledArchitectureError) as caught:
        registry.resolve("ZqFooForCausalLM", disabled=given)
    assert caught.value.setting == "disabled="
    assert registry.resolve("ZqFooForCausalLM", disabled=[]).__module__ == "zq_zoo.foo"


def test_argument_adds_to_the_variable(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "ZqFooModel")
    for name in ("ZqFooModel", "ZqBarForCausalLM"):
        with pytest.raises(DisabledArchitectureError, match=f"disabled= or {OWN}"):
            registry.resolve(name, disabled=["ZqBarForCausalLM"])


@pytest.mark.parametrize("given", [["A B"], [""], [None], [3]])
def test_argument_that_is_no_name(zoo: Site, given: list[str]) -> None:
    with pytest.raises(ConfigError, match="disabled=: .* is not an architecture name"):
        registry.resolve("ZqFooModel", disabled=given)


def test_a_name_that_nobody_claims_is_disabled_all_the_same(site: Site) -> None:
    source = site.catalog(disabled=frozenset({"Nobody"}))
    with pytest.warns(UserWarning, match="matches"), pytest.raises(DisabledArchitectureError):
        resolve_from(source, ["Nobody"])


@pytest.mark.parametrize(
    ("stem", "write"),
    [
        ("foo", "write ZqFooForCausalLM,ZqFooModel"),  # the module's own name
        ("zq_zoo.foo", "write ZqFooForCausalLM,ZqFooModel"),
        ("zq_bar", "write ZqBarForCausalLM"),
        ("zqfoo", "write ZqFooForCausalLM"),  # what the architecture begins with
        ("zq_foo", "write ZqFooForCausalLM"),
    ],
)
def test_module_stem_in_the_alias_is_told_with_the_names_to_write(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, stem: str, write: str
) -> None:
    monkeypatch.setenv(ALIAS, stem)
    with pytest.warns(UserWarning) as caught:
        found = registry.resolve("ZqFooForCausalLM")
    assert found.__module__ == "zq_zoo.foo"  # names are exact: nothing is switched off by guess
    (told,) = (str(warning.message) for warning in caught)
    assert told == f"{ALIAS}: {stem!r} is the name of a module, not of an architecture; {write}"


def test_a_name_that_matches_nothing_is_warned_about_whoever_serves(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN, "ZqFooForCausalLm")
    with pytest.warns(UserWarning, match="near names: ZqFooForCausalLM") as caught:
        registry.resolve("ZqBarForCausalLM")
    assert caught[0].filename == __file__  # the warning points at the caller


def test_nothing_to_tell_is_nothing_told(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "ZqFooForCausalLM")
    monkeypatch.setenv("ARCHZOO_PLUGINS", "zoo,bar")
    monkeypatch.setenv("ARCHZOO_OBSERVERS", "zoo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.resolve("ZqFooModel").__module__ == "zq_zoo.foo"


@pytest.mark.parametrize("value", ["zoo", "Zoo,", "ZOO , zoo"])
def test_list_of_plugins(zoo: Site, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ARCHZOO_PLUGINS", value)
    assert registry.resolve("ZqFooModel").__module__ == "zq_zoo.foo"
    with pytest.raises(UnknownArchitectureError, match="bar is not in ARCHZOO_PLUGINS; add it"):
        registry.resolve(["ZqBarForCausalLM", "ZqFooModel"])


def test_empty_list_of_plugins_is_none(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_PLUGINS", "")
    with pytest.raises(UnknownArchitectureError, match="lets no installed plugin in; unset it"):
        registry.resolve("ZqFooModel")


@pytest.mark.parametrize("variable", ["ARCHZOO_PLUGINS", "ARCHZOO_OBSERVERS"])
def test_plugin_that_is_not_there(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "zoo,zo")
    with pytest.warns(UserWarning, match=f"{variable}: 'zo' matches no installed plugin; near"):
        registry.resolve("ZqFooModel")
