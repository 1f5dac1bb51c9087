"""Several claim one name: an error, unless the user chooses; the choice is recorded and binding."""

from __future__ import annotations

import sys

import pytest
from registry.sites import Site

from archzoo import registry
from archzoo.errors import (
    ConfigError,
    DisabledArchitectureError,
    DuplicateArchitectureError,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from archzoo.registry import ProviderState, ReasonCode, Verdict, decide, resolve_from

CLASS = "class A: pass\n"
STATES = ProviderState
pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def rivals(live_site: Site) -> Site:
    """Two plugins that claim ZqA; each claims a name of its own, too."""
    for name in ("one", "two"):
        live_site.install(
            f"zq-{name}", {"ZqA": f"zq_{name}:A", f"Zq{name}": f"zq_{name}:A"},
            files={f"zq_{name}.py": CLASS},
        )  # fmt: skip
    return live_site


def test_error_names_both_and_the_exact_setting(
    rivals: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DuplicateArchitectureError) as caught:
        registry.resolve("ZqA")
    assert caught.value.distributions == ("zq-one 1.0", "zq-two 1.0")
    assert "zq_one" not in sys.modules and "zq_two" not in sys.modules
    setting = "ARCHZOO_PREFER=ZqA=zq-one"
    assert setting in str(caught.value)
    monkeypatch.setenv(*setting.split("=", 1))  # as the message spells it
    assert registry.resolve("ZqA").__module__ == "zq_one"


def test_no_later_name_is_tried(rivals: Site) -> None:
    with pytest.raises(DuplicateArchitectureError):
        registry.resolve(["ZqA", "Zqone"])


@pytest.mark.parametrize(
    "value", ["ZqA=zq-two", " ZqA = ZQ_Two ,", "zq.two", "zq-two,Zqone=zq-one"]
)
def test_choice_by_variable(rivals: Site, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ARCHZOO_PREFER", value)
    assert registry.resolve("ZqA").__module__ == "zq_two"
    assert "zq_one" not in sys.modules
    assert registry.resolve("Zqone").__module__ == "zq_one"  # nobody else claims it


def test_exact_choice_outranks_the_general_one(
    rivals: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHZOO_PREFER", "zq-one,ZqA=zq-two")
    assert registry.resolve("ZqA").__module__ == "zq_two"


def test_two_general_choices_choose_nothing(rivals: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_PREFER", "zq-one,zq-two")
    with pytest.raises(DuplicateArchitectureError):
        registry.resolve("ZqA")


def test_choice_by_argument_outranks_the_variable(
    rivals: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.resolve("ZqA", prefer={"ZqA": "Zq_One"}).__module__ == "zq_one"
    for value in ("ZqA=zq-one", "zq-one"):
        monkeypatch.setenv("ARCHZOO_PREFER", value)
        assert registry.resolve("ZqA", prefer={"ZqA": "zq-two"}).__module__ == "zq_two"
        assert registry.resolve("ZqA", prefer={}).__module__ == "zq_one"


@pytest.mark.parametrize(
    "prefer", [{"ZqA": ""}, {"ZqA": None}, {"ZqA": "no name"}, {"": "zq-one"}, {None: "zq-one"}]
)
def test_argument_that_is_no_choice(rivals: Site, prefer: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="^prefer=: ") as caught:
        registry.resolve("ZqA", prefer=prefer)
    assert caught.value.field == "prefer="


def test_choice_is_recorded(rivals: Site) -> None:
    source = rivals.catalog(prefer=(("ZqA", "zq-two"),))
    decision = decide(source, ["ZqA"])
    assert decision.verdict is Verdict.SERVED and decision.provider is not None
    assert decision.provider.distribution == "zq-two"
    assert decision.choice == "ARCHZOO_PREFER chooses it"
    one, two = decision.candidates
    assert (one.state, two.state) == (STATES.OVERRIDDEN, STATES.READY)
    assert [reason.code for reason in one.reasons] == [ReasonCode.NOT_CHOSEN]
    assert one.reason.startswith("ARCHZOO_PREFER gives ZqA to zq-two; ")
    uncontested = decide(source, ["Zqone"])
    assert uncontested.verdict is Verdict.SERVED and uncontested.choice == ""


def test_record_says_which_setting_it_was(rivals: Site) -> None:
    plain, set_before = rivals.catalog(), rivals.catalog(prefer=(("", "zq-one"),))
    for source, where in ((plain, "prefer="), (set_before, "prefer= or ARCHZOO_PREFER")):
        changed = source.under(source.settings.changed(prefer={"ZqA": "zq-two"}))
        decision = decide(changed, ["ZqA"])
        assert decision.choice == f"{where} chooses it"
        assert decision.candidates[0].reason.startswith(f"{where} gives ZqA to zq-two; ")


@pytest.mark.filterwarnings("ignore:.*'zq-on' matches no installed plugin")
@pytest.mark.parametrize("chosen", ["zq-three", "zq-on"])
def test_choice_of_one_who_does_not_claim_it(rivals: Site, chosen: str) -> None:
    rivals.install("zq-three", {"ZqThree": "zq_one:A"})
    with pytest.raises(RegistryError) as by_argument:
        registry.resolve("ZqA", prefer={"ZqA": chosen})
    assert "ZqA is claimed by zq-one 1.0 and zq-two 1.0" in str(by_argument.value)
    assert f"prefer= gives ZqA to {chosen}, which does not claim it" in str(by_argument.value)
    with pytest.raises(RegistryError, match=f"ARCHZOO_PREFER gives ZqA to {chosen}, which does"):
        resolve_from(rivals.catalog(prefer=(("ZqA", chosen),)), "ZqA")
    # Even where nobody contests: the user asked for somebody, and that one cannot be had.
    with pytest.raises(RegistryError, match="which does not claim it"):
        registry.resolve("Zqone", prefer={"Zqone": chosen})
    assert "zq_one" not in sys.modules and "zq_two" not in sys.modules


def test_choice_that_matches_nothing_is_warned_about(
    rivals: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHZOO_PREFER", "zq-onne")
    with pytest.warns(UserWarning, match="'zq-onne' matches no installed plugin.*near names: zq-o"):
        registry.resolve("Zqone")
    monkeypatch.setenv("ARCHZOO_PREFER", "ZqAA=zq-one")
    with pytest.warns(UserWarning, match="'ZqAA' is claimed by nobody; near names: ZqA"):
        registry.resolve("Zqone")


@pytest.mark.parametrize("way", ["skipped", "broken", "excluded", "unimportable"])
def test_chosen_one_that_cannot_serve_is_never_replaced(live_site: Site, way: str) -> None:
    requires = ["zq-fla>=2"] if way == "skipped" else []
    target = "not a target" if way == "broken" else "zq_chosen:A"
    live_site.install("chosen", {"ZqA": target}, requires=requires,
                      files={"zq_chosen.py": "raise OSError('boom')"})  # fmt: skip
    live_site.install("other", {"ZqA": "zq_other:A"}, files={"zq_other.py": CLASS})
    plugins = frozenset({"other"}) if way == "excluded" else None
    source = live_site.catalog(prefer=(("ZqA", "chosen"),), plugins=plugins)
    error = PluginLoadError if way == "unimportable" else UnknownArchitectureError
    with pytest.raises(error, match="of chosen 1.0"):
        resolve_from(source, ["ZqA", "ZqA"])
    assert "zq_other" not in sys.modules


def test_every_claimant_is_told_when_the_chosen_one_cannot_serve(site: Site) -> None:
    site.install("chosen", {"ZqA": "a:A"}, requires=["zq-fla>=2"])
    site.install("other", {"ZqA": "b:A"})
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(site.catalog(prefer=(("", "chosen"),)), "ZqA")
    skipped, overridden = caught.value.reasons
    assert "ZqA of chosen 1.0 is skipped: 'zq-fla>=2' is not installed" in skipped
    assert "ZqA of other 1.0 is overridden: ARCHZOO_PREFER gives ZqA to chosen" in overridden


def test_what_is_not_let_in_does_not_contest(rivals: Site) -> None:
    source = rivals.catalog(plugins=frozenset({"zq-two"}))
    assert resolve_from(source, "ZqA").__module__ == "zq_two"


def test_disabled_outranks_the_conflict(rivals: Site) -> None:
    with pytest.raises(DisabledArchitectureError):
        registry.resolve("ZqA", disabled=["ZqA"], prefer={"ZqA": "zq-one"})


def test_three_claimants(site: Site) -> None:
    for name in ("b", "a", "c"):
        site.install(name, {"ZqA": f"{name}:A"})
    with pytest.raises(DuplicateArchitectureError, match="by a 1.0 and b 1.0 and c 1.0; choose"):
        resolve_from(site.catalog(), "ZqA")


def test_choices_are_for_names_not_for_files(site: Site) -> None:
    """Two entries of one distribution are no conflict: one is another name."""
    site.install("p", {"ZqA": "a:A", "ZqB": "a:A"})
    assert decide(site.catalog(prefer=(("", "p"),)), ["ZqA"]).choice == ""
