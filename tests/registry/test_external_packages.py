"""External packages: found in source text, only the asked module imported, errors by name."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest
from registry.sites import Site

from archzoo.errors import (
    DuplicateArchitectureError,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from archzoo.registry import Catalog, Origin, resolve_from
from archzoo.registry.external import read_package
from archzoo.settings import Settings

VARIABLE = "ARCHZOO_EXTERNAL_MODEL_PACKAGE"
MODELS = {
    "zqext/__init__.py": "",
    "zqext/one.py": "class One: pass\nEntryClass = One\n",
    "zqext/deep/__init__.py": "",
    "zqext/deep/two.py": "class Two: pass\nclass Three: pass\nEntryClass = [Two, Three]\n",
    "zqext/table.py": (
        "ARCHITECTURES: dict = {'FourForCausalLM': 'Four', 'FiveForCausalLM': '.one:One'}\n"
        "class Four: pass\n"
    ),
    "zqext/broken.py": "class Six(:\nEntryClass = Six\n",
    "zqext/exits.py": "raise SystemExit(3)\n",
}


def put(site: Site, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = site.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def catalog(site: Site, *packages: str, **settings: object) -> Catalog:
    return site.catalog(external=packages, **settings)


def quietly(source: Catalog, name: str) -> type:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return resolve_from(source, name)


def test_claims_are_read_from_source(site: Site) -> None:
    put(site, MODELS)
    package = read_package("zqext", [str(site.folder)])
    found = {entry.name: f"{entry.module}:{entry.attr}" for entry in package.entries}
    assert found == {
        "One": "zqext.one:One",
        "Two": "zqext.deep.two:Two",
        "Three": "zqext.deep.two:Three",
        "FourForCausalLM": "zqext.table:Four",
        "FiveForCausalLM": "zqext.one:One",
    }
    (fault,) = package.faults
    assert fault.code == "module-unreadable" and "broken.py" in fault.problem
    assert not any(name.startswith("zqext") for name in sys.modules)


def test_digest_follows_the_source_and_not_the_place(site: Site, other_site: Site) -> None:
    put(site, MODELS)
    put(other_site, MODELS)
    first, second = (read_package("zqext", [str(each.folder)]) for each in (site, other_site))
    assert first.digest == second.digest
    put(other_site, {"zqext/one.py": MODELS["zqext/one.py"] + "# changed\n"})
    assert read_package("zqext", [str(other_site.folder)]).digest != first.digest


def test_only_the_asked_module_is_imported(live_site: Site) -> None:
    put(live_site, MODELS)
    found = quietly(catalog(live_site, "zqext"), "Two")
    assert found.__module__ == "zqext.deep.two"
    loaded = {name for name in sys.modules if name.startswith("zqext")}
    assert loaded == {"zqext", "zqext.deep", "zqext.deep.two"}


def test_provider_says_where_it_comes_from(site: Site) -> None:
    put(site, MODELS)
    (provider,) = catalog(site, "zqext").providers_of("One")
    assert provider.origin is Origin.EXTERNAL
    assert provider.label == f"zqext ({VARIABLE})"


@pytest.mark.parametrize("text", ["EntryClass = make()\n", "if True:\n    EntryClass = A\n"])
def test_undecided_modules_are_imported_on_a_miss(text: str, live_site: Site) -> None:
    head = "class A: pass\ndef make(): return A\n"
    put(live_site, {"zqlate.py": head + text})
    source = catalog(live_site, "zqlate")
    assert source.architectures() == ()
    assert "zqlate" not in sys.modules
    assert resolve_from(source, "A").__module__ == "zqlate"


def test_not_found_names_the_variable(site: Site) -> None:
    source = catalog(site, "zq_nowhere_3")
    with (
        pytest.warns(UserWarning, match="zq_nowhere_3"),
        pytest.raises(UnknownArchitectureError) as caught,
    ):
        resolve_from(source, "A")
    assert VARIABLE in str(caught.value) and "zq_nowhere_3" in str(caught.value)


def test_not_importable_keeps_its_cause(live_site: Site) -> None:
    put(live_site, {"zqboom/__init__.py": "", "zqboom/models.py": "raise ValueError('boom 17')\n"})
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(catalog(live_site, "zqboom.models"), "A")
    assert VARIABLE in str(caught.value) and "boom 17" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_bad_package_hides_no_plugin(live_site: Site) -> None:
    live_site.install("zq-fine", {"Fine": "zqfine:Fine"}, files={"zqfine.py": "class Fine: pass\n"})
    with pytest.warns(UserWarning, match=VARIABLE):
        assert resolve_from(catalog(live_site, "zq_nowhere_3"), "Fine").__name__ == "Fine"
    with pytest.raises(RegistryError, match="zq_nowhere_3"):
        resolve_from(catalog(live_site, "zq_nowhere_3", strict=True), "Fine")


def test_overriding_a_plugin_needs_the_users_word(live_site: Site) -> None:
    put(live_site, {"zqmine.py": "class Fine: mine = True\nEntryClass = Fine\n"})
    live_site.install("zq-fine", {"Fine": "zqfine:Fine"}, files={"zqfine.py": "class Fine: pass\n"})
    with pytest.raises(DuplicateArchitectureError, match="ARCHZOO_PREFER=Fine=zq") as caught:
        resolve_from(catalog(live_site, "zqmine"), "Fine")
    assert len(caught.value.distributions) == 2
    for prefer, module in (("zqmine", "zqmine"), ("zq-fine", "zqfine")):
        source = catalog(live_site, "zqmine", prefer=(("Fine", prefer),))
        assert resolve_from(source, "Fine").__module__ == module
        states = {each.distribution: str(each.state) for each in source.providers_of("Fine")}
        assert sorted(states.values()) == ["overridden", "ready"]


def test_a_class_that_is_not_there_is_a_defect(live_site: Site) -> None:
    put(live_site, {"zqgone.py": "ARCHITECTURES = {'GoneForCausalLM': 'Gone'}\n"})
    with pytest.raises(PluginLoadError, match=VARIABLE):
        resolve_from(catalog(live_site, "zqgone"), "GoneForCausalLM")


def test_the_alias_is_read_where_our_own_variable_is_unset() -> None:
    alias = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "theirs.models"}
    settings = Settings.from_environ(alias)
    assert settings.external == ("theirs.models",)
    assert settings.external_by == "SGLANG_EXTERNAL_MODEL_PACKAGE"
    both = Settings.from_environ({**alias, VARIABLE: "ours, others"})
    assert both.external == ("ours", "others") and both.external_by == VARIABLE


def test_a_hook_that_resolves_does_not_spoil_the_answer(live_site: Site) -> None:
    hooks = (
        "from archzoo.hooks import hookimpl\n"
        "from archzoo.errors import RegistryError\n"
        "from archzoo.registry import resolve_from\n"
        "class Late: pass\n"
        "source = None\n"
        "@hookimpl\n"
        "def archzoo_architectures():\n"
        "    try:\n"
        "        resolve_from(source, 'ZqUnheardOf')\n"
        "    except RegistryError:\n"
        "        pass\n"
        "    return {'ZqLate': Late}\n"
    )
    live_site.install(
        "zq-nest", {"nest": "zqnest"}, group="archzoo.plugins", files={"zqnest.py": hooks}
    )
    source = live_site.catalog()
    importlib.import_module("zqnest").source = source
    for _ in range(2):
        assert resolve_from(source, "ZqLate").__name__ == "Late"
