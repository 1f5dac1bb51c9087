"""Environment variables: what each value means, and that a bad one is named."""

from __future__ import annotations

import pickle

import pytest

from archzoo.errors import ConfigError
from archzoo.settings import Settings, variables_in_force


def test_nothing_set() -> None:
    assert Settings.from_environ({}) == Settings(frozenset(), False, None)


def test_empty_values() -> None:
    settings = Settings.from_environ(
        {"ARCHZOO_DISABLED_MODEL_ARCHS": " ", "ARCHZOO_STRICT": "", "ARCHZOO_PLUGINS": " , "}
    )
    assert settings == Settings(frozenset(), False, frozenset())


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_STRICT", "1")
    assert Settings.from_environ().strict


def test_disabled_names_are_exact() -> None:
    settings = Settings.from_environ({"ARCHZOO_DISABLED_MODEL_ARCHS": " A_1ForCausalLM,,bModel, "})
    assert settings.disabled == {"A_1ForCausalLM", "bModel"}


@pytest.mark.parametrize("value", ["A B", "A;B", "A,B C", "models/llama", "A\nB"])
def test_disabled_names_that_are_no_names(value: str) -> None:
    with pytest.raises(ConfigError, match="separated by commas") as caught:
        Settings.from_environ({"ARCHZOO_DISABLED_MODEL_ARCHS": value})
    assert caught.value.field == "ARCHZOO_DISABLED_MODEL_ARCHS"


@pytest.mark.parametrize(
    ("value", "strict"),
    [("1", True), ("TRUE", True), (" yes ", True), ("on", True)]
    + [("0", False), ("False", False), ("no", False), ("OFF", False)],
)
def test_strict_words(value: str, strict: bool) -> None:
    assert Settings.from_environ({"ARCHZOO_STRICT": value}).strict is strict


@pytest.mark.parametrize("value", ["2", "ture", "1,0", "None"])
def test_strict_that_is_neither(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environ({"ARCHZOO_STRICT": value})
    assert caught.value.field == "ARCHZOO_STRICT"
    assert repr(value) in str(caught.value)


def test_plugins_compare_by_normalised_name() -> None:
    settings = Settings.from_environ({"ARCHZOO_PLUGINS": "Archzoo_Llama, my.plugin"})
    assert settings.plugins == {"archzoo-llama", "my-plugin"}
    assert settings.selects("archzoo.LLAMA") and settings.selects("my--plugin")
    assert not settings.selects("archzoo")


def test_plugins_unset_is_all_and_empty_is_none() -> None:
    assert Settings.from_environ({}).selects("anything")
    assert not Settings.from_environ({"ARCHZOO_PLUGINS": ""}).selects("anything")


@pytest.mark.parametrize("value", ["archzoo llama", "archzoo-llama==1", "-x", "a,*"])
def test_plugins_that_are_no_names(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environ({"ARCHZOO_PLUGINS": value})
    assert caught.value.field == "ARCHZOO_PLUGINS"


def test_settings_can_be_a_key_and_travel() -> None:
    settings = Settings(frozenset({"A"}), True, frozenset())
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


OWN = ("ARCHZOO_DISABLED_MODEL_ARCHS", "ARCHZOO_EXTERNAL_MODEL_PACKAGE")
ALIASES = tuple(name.replace("ARCHZOO", "SGLANG") for name in OWN)


def test_aliases_are_read_where_the_own_variable_is_unset() -> None:
    settings = Settings.from_environ({ALIASES[0]: "A", ALIASES[1]: "a.b,c"})
    assert settings.disabled == {"A"} and settings.external == ("a.b", "c")
    assert (settings.disabled_by, settings.external_by) == ALIASES


@pytest.mark.parametrize("value", ["", "B"])
def test_own_variable_outranks_the_alias_even_when_empty(value: str) -> None:
    settings = Settings.from_environ(
        {ALIASES[0]: "A", OWN[0]: value, ALIASES[1]: "a", OWN[1]: value}
    )
    assert settings.disabled == set(filter(None, [value]))
    assert settings.external == tuple(filter(None, [value]))
    assert (settings.disabled_by, settings.external_by) == OWN


def test_bad_value_of_an_alias_names_the_alias() -> None:
    for alias in ALIASES:
        with pytest.raises(ConfigError) as caught:
            Settings.from_environ({alias: "no/name"})
        assert caught.value.field == alias


@pytest.mark.parametrize("value", ["a-b", "../x", "a..b", ".a", "a.", "a b", "1a", "a;b"])
def test_external_packages_that_are_no_import_names(value: str) -> None:
    with pytest.raises(ConfigError, match="import name of a package") as caught:
        Settings.from_environ({OWN[1]: value})
    assert caught.value.field == OWN[1] and repr(value) in str(caught.value)


def test_external_packages_keep_their_order_and_count_once() -> None:
    assert Settings.from_environ({OWN[1]: "b, a ,b,,a.c"}).external == ("b", "a", "a.c")


def test_preferences() -> None:
    settings = Settings.from_environ({"ARCHZOO_PREFER": " A = My_Plug , other.one,B=x, A=my-plug "})
    assert settings.prefer == (("A", "my-plug"), ("", "other-one"), ("B", "x"))
    assert settings.chosen("A") == "my-plug" and settings.chosen("C") == ""
    assert settings.preferred() == {"other-one"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("A=", "'' is not a distribution name"),
        ("A=b c", "'b c' is not a distribution name"),
        ("=b", "'' is not an architecture name"),
        ("A/B=c", "'A/B' is not an architecture name"),
        ("A=B=c", "'A=B' is not an architecture name"),
        ("A=b,A=c", "A is given to two distributions; name one"),
    ],
)
def test_preferences_that_are_none(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match="^ARCHZOO_PREFER: ") as caught:
        Settings.from_environ({"ARCHZOO_PREFER": value})
    assert said in str(caught.value)


def test_observers_compare_by_normalised_name() -> None:
    assert Settings.from_environ({"ARCHZOO_OBSERVERS": "My_Plug,b"}).observers == {"my-plug", "b"}
    with pytest.raises(ConfigError, match="ARCHZOO_OBSERVERS"):
        Settings.from_environ({"ARCHZOO_OBSERVERS": "*"})


def test_a_callers_words_are_added() -> None:
    base = Settings(frozenset({"A"}), prefer=(("X", "one"), ("Y", "two")))
    changed = base.changed(disabled=("B",), prefer={"X": "Thr_ee"})
    assert changed.disabled == {"A", "B"}
    assert changed.disabled_by == "disabled= or ARCHZOO_DISABLED_MODEL_ARCHS"
    assert changed.prefer == (("X", "thr-ee"), ("Y", "two"))
    assert changed.prefer_by == "prefer= or ARCHZOO_PREFER"
    assert Settings().changed(disabled="Bc").disabled == {"Bc"}  # one name, not its letters
    assert Settings().changed(disabled="B").disabled_by == "disabled="
    assert Settings().changed(prefer={"X": "one"}).prefer_by == "prefer="
    assert base.changed() == base
    assert changed.changed(disabled=["C"]).disabled == {"A", "B", "C"}


def test_variables_in_force() -> None:
    environ = {"ARCHZOO_PREFER": "a", ALIASES[0]: "", "ARCHZOO_STRICT": "1", "ARCHZOO_OTHER": "x"}
    assert variables_in_force(environ) == {
        ALIASES[0]: "", "ARCHZOO_PREFER": "a", "ARCHZOO_STRICT": "1"
    }  # fmt: skip
    assert variables_in_force({}) == {}
    every = {*OWN, *ALIASES, "ARCHZOO_PLUGINS", "ARCHZOO_PREFER", "ARCHZOO_OBSERVERS"}
    every.add("ARCHZOO_STRICT")
    assert set(variables_in_force(dict.fromkeys(every, "1"))) == every


def test_variables_in_force_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_OBSERVERS", "zq")
    assert variables_in_force()["ARCHZOO_OBSERVERS"] == "zq"
