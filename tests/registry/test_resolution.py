"""From names to one class: what serves, what refuses, and what the refusal says."""

from __future__ import annotations

import pickle
import sys

import pytest
from registry.sites import Site

from archzoo.errors import (
    ConfigError,
    DisabledArchitectureError,
    DuplicateArchitectureError,
    MissingDependency,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from archzoo.registry import ReasonCode, resolve_from

CLASS = "class A:\n    class Inner: pass\n"


def test_imports_exactly_one_plugin_module(live_site: Site) -> None:
    live_site.install(
        "good", {"A": "zq_good.a:A", "B": "zq_good.b:A"},
        files={"zq_good/__init__.py": "", "zq_good/a.py": CLASS, "zq_good/b.py": CLASS},
    )  # fmt: skip
    live_site.install("bomb", {"C": "zq_bomb:A"}, files={"zq_bomb.py": "raise ValueError"})
    catalog = live_site.catalog()
    assert catalog.providers() and not any(name.startswith("zq_") for name in sys.modules)
    found = resolve_from(catalog, "A")
    assert found.__module__ == "zq_good.a" and found.__name__ == "A"
    assert resolve_from(catalog, ("A",)) is found
    assert "zq_good.b" not in sys.modules and "zq_bomb" not in sys.modules


def test_nested_class(live_site: Site) -> None:
    live_site.install("p", {"A": "zq_nest:A.Inner"}, files={"zq_nest.py": CLASS})
    assert resolve_from(live_site.catalog(), "A").__qualname__ == "A.Inner"


def test_names_are_tried_in_order(live_site: Site) -> None:
    live_site.install("p", {"A": "zq_ord:A", "B": "zq_ord:A.Inner"}, files={"zq_ord.py": CLASS})
    catalog = live_site.catalog()
    assert resolve_from(catalog, ["Nobody", "B", "A"]).__name__ == "Inner"
    assert resolve_from(catalog, ["A", "B"]).__name__ == "A"


@pytest.mark.parametrize("names", [[None], ["A", 3], "", [""], [["A"]]])
def test_names_that_are_no_texts(site: Site, names: object) -> None:
    with pytest.raises(ConfigError, match="architectures: .* is not an architecture name"):
        resolve_from(site.catalog(), names)  # type: ignore[arg-type]  # hostile config.json


def test_no_name_at_all(site: Site) -> None:
    with pytest.raises(UnknownArchitectureError, match="names no architecture"):
        resolve_from(site.catalog(), [])


def test_nothing_installed_says_what_to_install(site: Site) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(site.catalog(), "LlamaForCausalLM")
    assert "LlamaForCausalLM is served by archzoo-llama; run: pip install archzoo-llama" in str(
        caught.value
    )
    with pytest.raises(UnknownArchitectureError, match="no model plugin is installed; run: pip"):
        resolve_from(site.catalog(), "Nobody")
    assert caught.value.architectures == ("LlamaForCausalLM",)


def test_unknown_gives_near_names_and_what_is_installed(site: Site) -> None:
    site.install("archzoo-llama", {"LlamaForCausalLM": "a:A", "MistralModel": "a:B"})
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(site.catalog(), ["lLamaForCausalLm", "Qwen"])
    assert caught.value.near == ("LlamaForCausalLM",)
    assert "'lLamaForCausalLm' or 'Qwen'" in str(caught.value)
    assert "installed plugins: archzoo-llama" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_unknown_does_not_list_hundreds(site: Site) -> None:
    for number in range(20):
        site.install(f"plugin-{number}", {f"A{number}": "a:A"})
    with pytest.raises(UnknownArchitectureError, match="and 12 more; install"):
        resolve_from(site.catalog(), "Nobody")


def test_unknown_names_plugins_that_could_not_be_read(site: Site) -> None:
    (site.install("bad") / "entry_points.txt").write_text("[archzoo.models\nA = a:A\n")
    with pytest.raises(UnknownArchitectureError, match="considered: bad 1.0: line 1 of entry_po"):
        resolve_from(site.catalog(), "A")


@pytest.mark.parametrize("names", ["A", ["A", "B"], ["Nobody", "A", "B"]])
def test_skipped_never_falls_through(live_site: Site, names: str | list[str]) -> None:
    live_site.install("skip", {"A": "zq_skip:A"}, requires=["zq-fla>=2"])
    live_site.install("good", {"B": "zq_fine:A"}, files={"zq_fine.py": CLASS})
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(live_site.catalog(), names)
    assert "no installed plugin serves 'A'" in str(caught.value)
    assert "A of skip 1.0 is skipped: 'zq-fla>=2' is not installed" in str(caught.value)
    assert "pip install 'zq-fla>=2'" in str(caught.value)
    assert resolve_from(live_site.catalog(), "B").__name__ == "A"


def test_disabled_never_falls_through(site: Site) -> None:
    site.install("p", {"A": "a:A", "B": "a:B"})
    with pytest.raises(DisabledArchitectureError) as caught:
        resolve_from(site.catalog(disabled=frozenset({"A"})), ["A", "B"])
    assert caught.value.setting == "ARCHZOO_DISABLED_MODEL_ARCHS"


def test_left_out_never_falls_through(site: Site) -> None:
    site.install("p", {"A": "a:A"})
    site.install("q", {"B": "b:B"})
    with pytest.raises(UnknownArchitectureError, match="p is not in ARCHZOO_PLUGINS; add it"):
        resolve_from(site.catalog(plugins=frozenset({"q"})), ["A", "B"])
    with pytest.raises(UnknownArchitectureError, match="lets no installed plugin in; unset it"):
        resolve_from(site.catalog(plugins=frozenset()), "Nobody")


def test_conflict_names_both_and_the_choice(live_site: Site) -> None:
    live_site.install("one", {"A": "zq_one:A", "B": "zq_one:A"}, files={"zq_one.py": CLASS})
    live_site.install("two", {"A": "zq_two:A"}, files={"zq_two.py": CLASS})
    with pytest.raises(DuplicateArchitectureError) as caught:
        resolve_from(live_site.catalog(), "A")
    assert caught.value.distributions == ("one 1.0", "two 1.0")
    assert "claimed by one 1.0 and two 1.0" in str(caught.value)
    assert "choose one with ARCHZOO_PREFER=A=one, or uninstall the others" in str(caught.value)
    assert "zq_one" not in sys.modules and "zq_two" not in sys.modules
    assert resolve_from(live_site.catalog(), "B").__module__ == "zq_one"
    chosen = live_site.catalog(plugins=frozenset({"two"}))
    assert resolve_from(chosen, "A").__module__ == "zq_two"


def test_a_skipped_claim_still_contests(live_site: Site) -> None:
    live_site.install("one", {"A": "zq_one:A"}, files={"zq_one.py": CLASS})
    live_site.install("two", {"A": "zq_two:A"}, requires=["zq-fla"])
    with pytest.raises(DuplicateArchitectureError):
        resolve_from(live_site.catalog(), "A")


def test_a_broken_claim_does_not_take_down_a_sound_one(live_site: Site) -> None:
    live_site.install("bad", {"A": "not a target"})
    live_site.install("good", {"A": "zq_sound:A"}, files={"zq_sound.py": CLASS})
    assert resolve_from(live_site.catalog(), "A").__module__ == "zq_sound"


FAILED, EXITED, MISSING = (
    ReasonCode.IMPORT_FAILED, ReasonCode.IMPORT_EXITED, ReasonCode.NAME_MISSING
)  # fmt: skip
BAD_MODULES = {  # source, words of the message, type of the cause, code
    "syntax": ("def (", "SyntaxError: ", "SyntaxError", FAILED),
    "missing_module": (
        "import no_such_pkg_zq1",
        "ModuleNotFoundError: No module named 'no_such_pkg_zq1', which bad does not declare",
        "ModuleNotFoundError",
        FAILED,
    ),
    "raises": ("raise ValueError('boom 17')", "ValueError: boom 17", "ValueError", FAILED),
    "exits": ("import sys; sys.exit(3)", "(exit code 3)", "SystemExit", EXITED),
    "recursion": ("def f(): f()\nf()", "RecursionError: ", "RecursionError", FAILED),
    "circular": (
        "from zq_circular import A", "ImportError: cannot import name 'A'", "ImportError", FAILED
    ),
    "missing_name": (
        "B = 1", "zq_missing_name:A names nothing: module 'zq_m", "AttributeError", MISSING
    ),
    "attribute_error": ("int.nope", "AttributeError: type object", "AttributeError", FAILED),
    "lazy_name": (
        "def __getattr__(n): raise OSError('lazy 5')", "OSError: lazy 5", "OSError", FAILED
    ),
    "lazy_exit": (
        "def __getattr__(n): raise SystemExit", "ends the interpreter", "SystemExit", EXITED
    ),
    "null_byte": ("x = 1\x00", "null bytes", "SyntaxError", FAILED),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_MODULES)
def test_import_failure_keeps_its_cause_and_hides_no_other(live_site: Site, kind: str) -> None:
    text, said, cause, code = BAD_MODULES[kind]
    live_site.install("bad", {"A": f"zq_{kind}:A"}, files={f"zq_{kind}.py": text})
    live_site.install("good", {"B": "zq_good2:A"}, files={"zq_good2.py": CLASS})
    catalog = live_site.catalog()
    with pytest.raises(PluginLoadError) as caught:
        resolve_from(catalog, ["A", "B"])
    assert f"entry point 'A = zq_{kind}:A' of bad 1.0 cannot be loaded" in str(caught.value)
    assert said in str(caught.value)
    assert type(caught.value.__cause__).__name__ == cause
    assert caught.value.code == code
    assert resolve_from(catalog, "B").__name__ == "A"


def test_module_file_is_missing(live_site: Site) -> None:
    live_site.install("bad", {"A": "zq_nofile.model:A"})
    with pytest.raises(PluginLoadError, match="of bad 1.0 .* module zq_nofile is not") as caught:
        resolve_from(live_site.catalog(), "A")
    assert caught.value.code == ReasonCode.MODULE_MISSING
    assert caught.value.fix == "run: pip install --force-reinstall bad"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("code", ["A = 3", "def A(): pass", "A = None", "import sys as A"])
def test_target_that_is_no_class(live_site: Site, code: str) -> None:
    live_site.install("bad", {"A": "zq_noclass:A"}, files={"zq_noclass.py": code})
    with pytest.raises(PluginLoadError, match="zq_noclass:A is .*, not a class"):
        resolve_from(live_site.catalog(), "A")


def test_missing_dependency_passes_through(live_site: Site) -> None:
    code = (
        "from archzoo.errors import MissingDependency\n"
        "raise MissingDependency('foo attention', 'fla', 'pip install fla')\n"
    )
    live_site.install("opt", {"A": "zq_opt:A"}, files={"zq_opt.py": code})
    with pytest.raises(MissingDependency) as caught:
        resolve_from(live_site.catalog(), "A")
    assert caught.value.requirement == "fla"


def test_interrupt_is_not_swallowed(live_site: Site) -> None:
    live_site.install("p", {"A": "zq_int:A"}, files={"zq_int.py": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        resolve_from(live_site.catalog(), "A")


def test_a_repaired_plugin_resolves_at_the_next_try(live_site: Site) -> None:
    live_site.install("p", {"A": "zq_repair:A"}, files={"zq_repair.py": "import zq_later\nA = int"})
    catalog = live_site.catalog()
    with pytest.raises(PluginLoadError):
        resolve_from(catalog, "A")
    sys.modules["zq_later"] = sys
    try:
        assert resolve_from(catalog, "A") is int
    finally:
        del sys.modules["zq_later"]


class TestStrict:
    """Strict mode: everything that is enabled must be able to serve."""

    @pytest.fixture
    def mixed(self, live_site: Site) -> Site:
        """A sound plugin, one that is skipped, one that is broken, one with a stray line."""
        live_site.install("good", {"A": "zq_strict:A"}, files={"zq_strict.py": CLASS})
        live_site.install("skip", {"B": "b:B"}, requires=["zq-fla"])
        live_site.install("bad", {"C": "nonsense"})
        (live_site.install("line") / "entry_points.txt").write_text("[archzoo.models]\nwhat\n")
        return live_site

    def test_off_serves(self, mixed: Site) -> None:
        assert resolve_from(mixed.catalog(), "A").__name__ == "A"
        assert resolve_from(mixed.catalog(strict=True), "A", strict=False).__name__ == "A"

    def test_on_names_every_fault(self, mixed: Site) -> None:
        with pytest.raises(RegistryError) as caught:
            resolve_from(mixed.catalog(), "A", strict=True)
        for said in ("3 enabled entries", "B of skip 1.0 is skipped", "C of bad 1.0 is broken",
                     "line 1.0: line 2", "ARCHZOO_STRICT"):  # fmt: skip
            assert said in str(caught.value)
        with pytest.raises(RegistryError, match="strict mode"):
            resolve_from(mixed.catalog(strict=True), "A")

    def test_what_is_switched_off_may_be_broken(self, mixed: Site) -> None:
        by_plugin = mixed.catalog(strict=True, plugins=frozenset({"good"}))
        assert resolve_from(by_plugin, "A").__name__ == "A"
        by_name = mixed.catalog(
            strict=True, plugins=frozenset({"good", "bad"}), disabled=frozenset({"C"})
        )
        assert resolve_from(by_name, "A").__name__ == "A"
