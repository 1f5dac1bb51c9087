"""Packages that a variable names: resolved, refused and reported like installed plugins."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import (
    DuplicateArchitectureError,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from archzoo.registry import Origin, ProviderState, Verdict, catalog, decide, resolve_from

OWN, ALIAS = "ARCHZOO_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MODEL_PACKAGE"
pytestmark = pytest.mark.usefixtures("no_settings")


def model(name: str, declared: str = "") -> str:
    return f"class {name}: pass\nEntryClass = {declared or name}\n"


def write(site: Site, **files: str) -> None:
    """Modules; ``a__b`` is ``a/b.py``, and every folder gets an ``__init__``."""
    for name, text in files.items():
        path = site.folder / Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder == site.folder:
                break
            (folder / "__init__.py").touch()
        path.write_text(text)


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("zx")}


@pytest.fixture
def zoo(live_site: Site) -> Site:
    """A package with three models, one of them two levels down, and a module that explodes."""
    write(
        live_site,
        zxa__one=model("ZxOne"),
        zxa__two="class ZxTwo: pass\nclass ZxThree: pass\nEntryClass = [ZxTwo, ZxThree]\n",
        zxa__deep__four="class Own: pass\nARCHITECTURES = {'ZxFour': Own, 'ZxFive': '.five:Five'}\n",
        zxa__deep__five="class Five: pass\n",
        zxa__bomb="1/0\n",
    )
    return live_site


def test_only_the_asked_module_and_its_parents_are_imported(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN, "zxa")
    assert {"ZxOne", "ZxTwo", "ZxThree", "ZxFour", "ZxFive"} <= set(catalog().architectures())
    assert imported() == set()
    assert registry.resolve("ZxThree").__name__ == "ZxThree"
    assert imported() == {"zxa", "zxa.two"}
    assert registry.resolve("ZxFour").__qualname__ == "Own"
    assert imported() == {"zxa", "zxa.two", "zxa.deep", "zxa.deep.four"}
    assert registry.resolve("ZxFive").__module__ == "zxa.deep.five"
    assert "zxa.one" not in imported() and "zxa.bomb" not in imported()


@pytest.mark.parametrize(
    ("own", "alias", "served"),
    [(None, "zxa", True), ("", "zxa", False), ("zxb", "zxa", False), ("zxb,zxa", None, True)],
)
def test_alias_has_lower_priority(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, own: str | None, alias: str | None, served: bool
) -> None:
    write(zoo, zxb=model("ZxB"))
    for variable, value in ((OWN, own), (ALIAS, alias)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    if served:
        assert registry.resolve("ZxOne").__module__ == "zxa.one"
    else:
        with pytest.raises(UnknownArchitectureError):
            registry.resolve("ZxOne")


@pytest.mark.parametrize("variable", [OWN, ALIAS])
def test_reports_are_those_of_entry_points_and_name_the_variable(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "zxa")
    decision = decide(catalog(), ["ZxOne"])
    assert decision.verdict is Verdict.SERVED and decision.provider is not None
    assert decision.provider.origin is Origin.EXTERNAL
    assert decision.provider.state is ProviderState.READY
    assert decision.provider.label == f"zxa ({variable})"
    assert decision.provider.entry == "ZxOne = zxa.one:ZxOne"


def test_override_of_an_installed_plugin_needs_the_users_word(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(zoo, zx_plug="class P: pass\n")
    zoo.install("zz-plug", {"ZxOne": "zx_plug:P"})
    monkeypatch.setenv(OWN, "zxa")
    with pytest.raises(DuplicateArchitectureError) as caught:
        registry.resolve("ZxOne")
    assert caught.value.distributions == (f"zxa ({OWN})", "zz-plug 1.0")  # by name
    assert imported() == set()
    monkeypatch.setenv("ARCHZOO_PREFER", "ZxOne=zxa")
    assert registry.resolve("ZxOne").__module__ == "zxa.one"
    assert decide(catalog(), ["ZxOne"]).choice == "ARCHZOO_PREFER chooses it"
    monkeypatch.setenv("ARCHZOO_PREFER", "zz-plug")
    assert registry.resolve("ZxOne").__module__ == "zx_plug"


def test_chosen_by_the_import_name(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write(zoo, zx_my__models=model("ZxOne"))
    monkeypatch.setenv(OWN, "zx_my.models,zxa")
    with pytest.raises(DuplicateArchitectureError):
        registry.resolve("ZxOne")
    found = registry.resolve("ZxOne", prefer={"ZxOne": "zx_my.models"})
    assert found.__module__ == "zx_my.models"


def test_disabled_and_let_in(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "zxa")
    monkeypatch.setenv("ARCHZOO_PLUGINS", "")  # a list of distributions says nothing of packages
    assert registry.resolve("ZxOne").__module__ == "zxa.one"
    with pytest.raises(RegistryError, match="disabled="):
        registry.resolve("ZxOne", disabled=["ZxOne"])


def test_package_that_is_not_there(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo.install("plug", {"ZxP": "zxa.one:ZxOne"})
    monkeypatch.setenv(OWN, "zxa,zx_nowhere")
    with pytest.warns(UserWarning, match=f"{OWN}: no package or module 'zx_nowhere' is found"):
        assert registry.resolve("ZxP").__name__ == "ZxOne"
    with pytest.warns(UserWarning), pytest.raises(UnknownArchitectureError) as caught:
        registry.resolve("ZxNobody")
    assert f"considered: {OWN}: no package or module 'zx_nowhere' is found" in str(caught.value)
    with pytest.raises(RegistryError, match="strict mode.*\n.*zx_nowh"):
        registry.resolve("ZxP", strict=True)


BROKEN = {
    "raises": ("raise OSError('boom 9')\n", "OSError: boom 9", OSError),
    "misses": ("import zq_nothing\n", "ModuleNotFoundError: No module named", ModuleNotFoundError),
    "exits": ("raise SystemExit(4)\n", "SystemExit: 4", SystemExit),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("variable", [OWN, ALIAS])
def test_package_that_does_not_import(
    live_site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, variable: str
) -> None:
    """Nothing tells what it would claim: its import is tried when nobody else has an answer."""
    text, said, cause = BROKEN[kind]
    write(live_site, zxbad=text, zx_plug="class P: pass\n")
    live_site.install("plug", {"ZxP": "zx_plug:P"})
    monkeypatch.setenv(variable, "zxbad")
    assert registry.resolve("ZxP").__name__ == "P"
    with pytest.raises(UnknownArchitectureError) as caught:
        registry.resolve("ZxAny")
    assert f"considered: {variable}: zxbad cannot be imported: {said}" in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)


def test_declaration_of_a_wrong_type_is_told_apart_from_an_import_that_fails(
    live_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(live_site, zxwrong="EntryClass = [len]\n")
    monkeypatch.setenv(OWN, "zxwrong")
    with pytest.raises(UnknownArchitectureError) as caught:
        registry.resolve("ZxAny")
    said = "what zxwrong declares cannot be used: EntryClass of module zxwrong holds"
    assert said in str(caught.value) and "cannot be imported" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RegistryError)


@pytest.mark.parametrize("kind", BROKEN)
def test_module_that_claims_and_does_not_import(
    zoo: Site, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text, _, cause = BROKEN[kind]
    write(zoo, zxa__bad=text + model("ZxBad"))
    monkeypatch.setenv(OWN, "zxa")
    with pytest.raises(PluginLoadError) as caught:
        registry.resolve(["ZxBad", "ZxOne"])
    assert caught.value.distribution == f"zxa ({OWN})"
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.fix == f"mend the package, or take it out of {OWN}"
    assert registry.resolve("ZxOne").__module__ == "zxa.one"


def test_source_that_cannot_be_parsed_hides_no_other(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(zoo, zxa__torn="EntryClass = (\n")
    monkeypatch.setenv(OWN, "zxa")
    with pytest.warns(UserWarning, match=f"{OWN}: module zxa.torn cannot be read: .*torn.py:1: "):
        assert registry.resolve("ZxOne").__module__ == "zxa.one"


def test_undecided_modules_are_imported_only_on_a_miss(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(zoo, zxa__computed="class ZxC: pass\nEntryClass = [c for c in (ZxC,)]\n")
    monkeypatch.setenv(OWN, "zxa")
    registry.resolve("ZxOne")
    assert "zxa.computed" not in imported()
    found = registry.resolve(["ZxC", "ZxAny"])
    assert found.__module__ == "zxa.computed"
    assert imported() == {"zxa", "zxa.one", "zxa.computed"}
    assert registry.resolve("ZxC") is found
    assert "ZxC" not in catalog().architectures()  # what running code said is no metadata


def test_a_package_that_declares_nothing_says_so(
    live_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(live_site, zxnone="class A: pass\n")
    monkeypatch.setenv(OWN, "zxnone")
    with pytest.raises(UnknownArchitectureError, match="zxnone declares no EntryClass and no ARCH"):
        registry.resolve("ZxAny")


def test_wrong_type_of_declaration(live_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write(live_site, zxw="EntryClass = 3 + 4\n")
    monkeypatch.setenv(OWN, "zxw")
    with pytest.raises(UnknownArchitectureError, match="EntryClass of module zxw holds 7, not a"):
        registry.resolve("ZxAny")


def test_two_modules_that_contradict_are_a_broken_claim(
    zoo: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(zoo, zxa__again=model("ZxOne"))
    monkeypatch.setenv(OWN, "zxa")
    with pytest.raises(UnknownArchitectureError, match="is claimed by module zxa.again .*zxa.one"):
        registry.resolve("ZxOne")
    assert registry.resolve("ZxTwo").__module__ == "zxa.two"


def test_nothing_is_told_when_all_is_well(zoo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "zxa")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.resolve("ZxOne")


# --- hooks: the other source of late answers

HOOK = """
from archzoo.hooks import hookimpl
class Given: pass
@hookimpl
def archzoo_architectures():
    return {"ZxHook": "zx_hooked.model:M", "ZxGiven": Given, "ZxP": Given, "ZxGone": "zx_no:M"}
"""


@pytest.fixture
def hooked(live_site: Site) -> Site:
    """A hook plugin beside an ordinary one."""
    write(live_site, zx_hooked__hooks=HOOK, zx_hooked__model="class M: pass\n", zx_p=model("P"))
    live_site.install("hooked", {"zx": "zx_hooked.hooks"}, group="archzoo.plugins")
    live_site.install("plug", {"ZxP": "zx_p:P"})
    return live_site


def test_hooks_are_asked_only_on_a_miss_and_never_override(hooked: Site) -> None:
    source = hooked.catalog()
    assert resolve_from(source, "ZxP").__name__ == "P"
    assert imported() == {"zx_p"}
    assert resolve_from(source, ["ZxHook", "ZxP"]).__name__ == "P"  # metadata has an answer
    assert imported() == {"zx_p"}
    assert resolve_from(source, ["ZxHook"]).__module__ == "zx_hooked.model"
    assert resolve_from(source, "ZxGiven").__name__ == "Given"


@pytest.mark.parametrize("way", ["skipped", "broken", "contested", "mischosen", "disabled"])
def test_hooks_do_not_replace_what_cannot_serve(hooked: Site, way: str) -> None:
    target = "not a target" if way == "broken" else "zx_p:P"
    hooked.install("mine", {"ZxHook": target}, requires=["zx-no"] if way == "skipped" else [])
    if way == "contested":
        hooked.install("yours", {"ZxHook": "zx_p:P"})
    prefer = (("ZxHook", "plug"),) if way == "mischosen" else ()
    disabled = frozenset({"ZxHook"}) if way == "disabled" else frozenset()
    source = hooked.catalog(prefer=prefer, disabled=disabled)
    with pytest.raises(RegistryError):
        resolve_from(source, ["ZxHook"])
    assert imported() == set()


def test_a_late_claim_that_cannot_be_loaded_names_its_plugin(hooked: Site) -> None:
    with pytest.raises(PluginLoadError, match=r"'ZxGone = zx_no:M' of hooked 1.0 \(hook\)"):
        resolve_from(hooked.catalog(), "ZxGone")


def test_hooks_of_a_plugin_that_is_not_let_in_are_not_asked(hooked: Site) -> None:
    with pytest.raises(UnknownArchitectureError):
        resolve_from(hooked.catalog(plugins=frozenset({"plug"})), "ZxHook")
    assert imported() == set()


def test_two_hooks_contest_like_two_plugins(hooked: Site) -> None:
    hooked.install("rival", {"zx": "zx_hooked.hooks"}, group="archzoo.plugins")
    with pytest.raises(DuplicateArchitectureError, match="hooked 1.0 .hook. and rival 1.0 .hook."):
        resolve_from(hooked.catalog(), "ZxHook")
    chosen = hooked.catalog(prefer=(("", "rival"),))
    assert resolve_from(chosen, "ZxHook").__module__ == "zx_hooked.model"


def test_a_hook_that_raises_is_told_with_the_refusal(live_site: Site) -> None:
    code = "from archzoo.hooks import hookimpl\n@hookimpl\ndef archzoo_architectures(): 1/0\n"
    write(live_site, zx_raise=code)
    live_site.install("bad", {"zx": "zx_raise"}, group="archzoo.plugins")
    with pytest.raises(
        UnknownArchitectureError, match="bad 1.0: archzoo_architectures of .*raised"
    ):
        resolve_from(live_site.catalog(), "ZxAny")


def test_a_class_that_is_not_there_is_a_defect(
    live_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(live_site, zxgone="ARCHITECTURES = {'ZxGone': 'Gone'}\n")
    monkeypatch.setenv(OWN, "zxgone")
    with pytest.raises(PluginLoadError, match=OWN):
        registry.resolve("ZxGone")


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
