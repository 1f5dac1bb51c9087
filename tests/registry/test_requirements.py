"""Requirements are judged before any plugin code runs."""

from __future__ import annotations

import pytest
from registry.sites import Site

from archzoo import __version__
from archzoo.registry import Provider, ProviderState, ReasonCode, needs


def provider_of(site: Site, target: str = "a:A", **metadata: object) -> Provider:
    site.install("plug", {"A": target}, **metadata)  # type: ignore[arg-type]  # forwarded
    (provider,) = site.catalog().providers()
    return provider


def codes(provider: Provider) -> list[ReasonCode]:
    return [reason.code for reason in provider.reasons]


@pytest.mark.parametrize(
    "line",
    [
        "dep", "Dep>=1", "dep==2.0", "dep<3,!=2.1", "dep (>=1.5)", "dep @ https://example.org/d.whl",
        "nothere; extra == 'x'", "nothere; python_version < '3'", "dep[unknown]", "dep ; extra != 'x'",
    ],
)  # fmt: skip
def test_met(site: Site, line: str) -> None:
    site.install("dep", version="2.0")
    provider = provider_of(site, requires=[line])
    assert provider.state is ProviderState.READY and provider.reason == ""


@pytest.mark.parametrize("installed", ["2.0.dev1", "2.0rc1", "2.0+cpu", "1.5.post1"])
def test_unusual_versions_count_by_their_order(site: Site, installed: str) -> None:
    site.install("dep", version=installed)
    assert provider_of(site, requires=["dep>=1.5"]).state is ProviderState.READY


def test_missing_is_told_with_the_command(site: Site) -> None:
    provider = provider_of(site, requires=["zq-one[fast]>=1,<2; python_version > '3'", "zq_two"])
    assert provider.state is ProviderState.SKIPPED
    assert codes(provider) == [ReasonCode.REQUIREMENT_MISSING] * 2
    assert "'zq-one[fast]<2,>=1' is not installed" in provider.reason
    assert "run: pip install 'zq-one[fast]<2,>=1'" in provider.reason
    assert "run: pip install zq_two" in provider.reason


def test_out_of_range_is_told_with_both_versions(site: Site) -> None:
    site.install("dep", version="2.0")
    provider = provider_of(site, requires=["dep>=3"])
    assert codes(provider) == [ReasonCode.REQUIREMENT_VERSION]
    assert "dep 2.0 is installed, 'dep>=3' is needed" in provider.reason
    assert "pip install 'dep>=3'" in provider.reason


def test_version_that_cannot_be_read_is_out_of_range(site: Site) -> None:
    (site.install("dep", version="2.0") / "METADATA").write_text("Name: dep\nVersion: banana\n\n")
    assert codes(provider_of(site, requires=["dep>=1"])) == [ReasonCode.REQUIREMENT_VERSION]


@pytest.mark.parametrize(("line", "met"), [(f"archzoo>={__version__}", True), ("archzoo>=999", False),
                                           ("archzoo<0.0.1", False), ("ArchZoo", True)])  # fmt: skip
def test_core_range_is_that_of_the_running_core(site: Site, line: str, met: bool) -> None:
    site.install("archzoo", version="500.0")  # stale metadata of another core
    provider = provider_of(site, requires=[line])
    if met:
        assert provider.state is ProviderState.READY
    else:
        assert codes(provider) == [ReasonCode.CORE_VERSION]
        assert f"archzoo {__version__} is installed" in provider.reason
        assert f"a version of plug that is built for archzoo {__version__}" in provider.reason


def test_core_needs_no_metadata_of_its_own(site: Site) -> None:
    assert provider_of(site, requires=["archzoo"]).state is ProviderState.READY


def test_extra_of_the_entry_point(site: Site) -> None:
    requires = ["zq-fla>=1; extra == 'Flash_Attn'", "zq-other; extra == 'other'"]
    provider = provider_of(
        site, "a:A [flash-attn]", requires=requires, extras=["Flash_Attn", "other"]
    )
    assert provider.extras == ("flash-attn",)
    assert codes(provider) == [ReasonCode.REQUIREMENT_MISSING]
    assert "zq-fla>=1" in provider.reason and "zq-other" not in provider.reason


def test_extra_that_is_met(site: Site) -> None:
    site.install("zq-fla", version="1.2")
    provider = provider_of(
        site, "a:A [fla]", requires=["zq-fla>=1; extra == 'fla'"], extras=["fla"]
    )
    assert provider.state is ProviderState.READY


def test_mandatory_requirement_is_told_once_with_an_extra(site: Site) -> None:
    provider = provider_of(site, "a:A [x, y]", requires=["zq-one"], extras=["x", "y"])
    assert codes(provider) == [ReasonCode.REQUIREMENT_MISSING]


def test_extra_that_is_not_declared_is_a_defect(site: Site) -> None:
    provider = provider_of(site, "a:A [fla]", extras=["flash"])
    assert provider.state is ProviderState.BROKEN
    assert codes(provider) == [ReasonCode.EXTRA_UNDECLARED] and "'fla'" in provider.reason


def test_extra_of_a_requirement(site: Site) -> None:
    site.install("dep", requires=["zq-fast; extra == 'fast'", "zq-own", "zq-no; extra == 'n'"],
                 extras=["fast", "n"])  # fmt: skip
    provider = provider_of(site, requires=["dep[fast]"])
    assert "zq-fast" in provider.reason
    assert "zq-own" not in provider.reason  # what dep itself needs is its own installer's matter
    assert "zq-no" not in provider.reason


def test_extra_that_collects_extras_of_its_own_distribution(site: Site) -> None:
    requires = [
        "plug[fla,all]; extra == 'all'",
        "zq-fla; extra == 'fla'",
        "zq-no; extra == 'no'",
    ]
    provider = provider_of(site, "a:A [all]", requires=requires, extras=["all", "fla", "no"])
    assert [reason.problem for reason in provider.reasons] == ["'zq-fla' is not installed"]


def test_extras_in_a_circle_end(site: Site) -> None:
    site.install("dep", requires=["plug[y]; extra == 'x'"], extras=["x"])
    provider = provider_of(site, requires=["dep[x]", "dep[x]; extra == 'y'"], extras=["y"])
    assert provider.state is ProviderState.READY


def test_requirements_are_looked_up_on_the_path_of_the_catalog(site: Site) -> None:
    # numpy is installed where the tests run, and not in this folder.
    assert codes(provider_of(site, requires=["numpy"])) == [ReasonCode.REQUIREMENT_MISSING]


def test_parser_that_runs_out_of_stack_costs_only_its_plugin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(line: str) -> None:
        raise RecursionError(line)  # what older packaging does on deeply nested markers

    monkeypatch.setattr(needs, "_parse_any", exhausted)
    site.install("good", {"B": "b:B"})
    site.install("plug", {"A": "a:A"}, requires=["zq-deep; (python_version > '3')"])
    assert [p.state for p in site.catalog().providers()] == [
        ProviderState.BROKEN,
        ProviderState.READY,
    ]
