"""Environment variables: what each value means, and that a bad one is named."""

from __future__ import annotations

import pickle

import pytest

from archzoo.errors import ConfigError
from archzoo.settings import Settings


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
