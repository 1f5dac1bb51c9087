"""list: every claim, every reason, nothing that steers the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Run
from registry.sites import Site

from archzoo.cli.listing import as_json, as_text


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def test_columns_are_aligned_and_reasons_stand_below(site: Site) -> None:
    site.install("archzoo-good", {"AForCausalLM": "good.model:A"}, version="0.3")
    site.install(
        "zoo-with-a-long-name",
        {"LongerNameForCausalLM": "bad.model:B"},
        requires=["no-such-distribution>=2"],
    )
    lines = as_text(site.catalog()).splitlines()
    assert lines[:3] == [
        "ARCHITECTURE           PLUGIN                    STATE",
        "AForCausalLM           archzoo-good 0.3          ready",
        "LongerNameForCausalLM  zoo-with-a-long-name 1.0  skipped",
    ]
    assert lines[3].startswith("  ") and "no-such-distribution" in lines[3]
    assert "pip install" in lines[3]
    assert len(lines) == 4


def test_nothing_installed_says_what_to_install(site: Site) -> None:
    assert as_text(site.catalog()) == (
        "No model plugin is installed; run: pip install archzoo-llama"
    )
    assert json.loads(as_json(site.catalog())) == {"providers": [], "problems": []}


def test_broken_distributions_and_settings_are_problems(site: Site) -> None:
    info = site.install("broken", {})
    (info / "entry_points.txt").write_text("[archzoo.models]\nthis is no entry\n")
    text = as_text(site.catalog(disabled=frozenset({"NoSuchArch"})))
    head, _, problems = text.partition("\nProblems:\n")
    assert head.startswith("No model plugin is installed")
    assert problems.count("\n  - ") + problems.startswith("  - ") == 2
    assert "broken 1.0" in problems and "'NoSuchArch'" in problems
    content = json.loads(as_json(site.catalog(disabled=frozenset({"NoSuchArch"}))))
    assert {each["source"] for each in content["problems"]} == {
        "broken 1.0",
        "ARCHZOO_DISABLED_MODEL_ARCHS",
    }


def test_json_holds_codes_and_targets(site: Site) -> None:
    site.install("one", {"AForCausalLM": "one.model:A [fast]"}, extras=["fast"])
    [provider] = json.loads(as_json(site.catalog(plugins=frozenset())))["providers"]
    assert provider["target"] == "one.model:A [fast]"
    assert provider["state"] == "excluded"
    assert provider["reasons"][0]["code"] == "plugin-not-selected"
    assert set(provider["reasons"][0]) == {"code", "problem", "fix"}


def test_metadata_cannot_steer_the_terminal(site: Site) -> None:
    site.install("evil", {"AForCausalLM": "evil:A"}, version="1\x1b[2J\x07")
    text = as_text(site.catalog())
    assert "evil" in text
    assert all(char.isprintable() for line in text.split("\n") for char in line)


def test_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("list")
    assert done.code == 0 and done.err == ""
    assert "LlamaForCausalLM" in done.out
    assert json.loads(run("list", "--json").out)["providers"]
    monkeypatch.setenv("ARCHZOO_STRICT", "perhaps")
    done = run("list")
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("error: ARCHZOO_STRICT: 'perhaps'")
