"""list: every claim, every reason, filters, nothing that steers the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Run
from registry.sites import Site

from archzoo.cli import layout
from archzoo.cli.listing import GROUPS, Filter, as_record, as_text
from archzoo.registry import Catalog


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def text(catalog: Catalog, columns: int = 120, **chosen: object) -> str:
    return as_text(catalog, Filter(**chosen), columns)  # type: ignore[arg-type]  # test helper


def test_columns_are_aligned_and_reasons_stand_below(site: Site) -> None:
    site.install("archzoo-good", {"AForCausalLM": "good.model:A"}, version="0.3")
    site.install(
        "zoo-with-a-long-name",
        {"LongerNameForCausalLM": "bad.model:B"},
        requires=["no-such-distribution>=2"],
    )
    lines = text(site.catalog()).splitlines()
    assert lines[:6] == [
        "ARCHITECTURE           PLUGIN                    STATE",
        "AForCausalLM           archzoo-good 0.3          ready",
        "LongerNameForCausalLM  zoo-with-a-long-name 1.0  skipped",
        "    'no-such-distribution>=2' is not installed",
        "    fix: run: pip install 'no-such-distribution>=2'",
        "2 in all: 1 ready, 1 skipped",
    ]


def test_nothing_installed_says_what_to_install(site: Site) -> None:
    assert text(site.catalog()) == "No model plugin is installed; run: pip install archzoo-llama"
    assert as_record(site.catalog(), Filter()) == {"providers": [], "problems": []}
    everything = text(site.catalog(), groups=tuple(GROUPS)).splitlines()
    assert len(everything) == 4 and "'torch'" in everything[1]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"pattern": "a*"}, ["AForCausalLM"]),
        ({"pattern": "?FORcausallm"}, ["AForCausalLM", "BForCausalLM"]),
        ({"states": ("skipped",)}, ["BForCausalLM"]),
        ({"states": ("skipped", "ready")}, ["AForCausalLM", "BForCausalLM"]),
        ({"plugin": "ONE_a"}, ["AForCausalLM"]),
        ({"plugin": "two", "pattern": "a*"}, []),
        ({"groups": ("quantization",)}, ["q4"]),
        ({"groups": tuple(GROUPS)}, ["AForCausalLM", "BForCausalLM", "q4"]),
    ],
)
def test_filters(site: Site, chosen: dict[str, object], names: list[str]) -> None:
    site.install("one.a", {"AForCausalLM": "one:A"})
    site.install("two", {"BForCausalLM": "two:B"}, requires=["zq-nowhere"])
    site.install("three", {"q4": "three:Q"}, group="archzoo.quantization")
    catalog = site.catalog()
    found = as_record(catalog, Filter(**chosen))["providers"]  # type: ignore[arg-type]  # by name
    assert [each["architecture"] for each in found] == names
    shown = text(catalog, **chosen)
    assert all(name in shown for name in names)
    assert ("Nothing here matches" in shown) is not names


def test_a_filter_that_matches_nothing_says_so(site: Site) -> None:
    site.install("one", {"LlamaForCausalLM": "one:A"})
    shown = text(site.catalog(), pattern="LamaForCausalLM*", states=("broken",), plugin="x")
    assert "name 'LamaForCausalLM*', state broken, plugin x; 1 are claimed" in shown
    assert "Near names: LlamaForCausalLM" in shown and "archzoo list shows all" in shown


def test_problems_of_other_plugins_are_not_shown_under_a_filter(site: Site) -> None:
    (site.install("broken", {}) / "entry_points.txt").write_text("[archzoo.models]\nno entry\n")
    site.install("one", {"AForCausalLM": "one:A"})
    assert "broken 1.0" in text(site.catalog())
    assert "broken 1.0" in text(site.catalog(), plugin="Broken")
    assert "broken 1.0" not in text(site.catalog(), plugin="one")


def test_broken_distributions_and_settings_are_problems(site: Site) -> None:
    info = site.install("broken", {})
    (info / "entry_points.txt").write_text("[archzoo.models]\nthis is no entry\n")
    catalog = site.catalog(disabled=frozenset({"NoSuchArch"}))
    head, _, problems = text(catalog).partition("\nProblems:\n")
    assert head.startswith("No model plugin is installed")
    assert "[entry-point-invalid]" in problems and "'NoSuchArch'" in problems
    assert {each["source"] for each in as_record(catalog, Filter())["problems"]} == {
        "broken 1.0",
        "ARCHZOO_DISABLED_MODEL_ARCHS",
    }


def test_json_holds_codes_and_targets(site: Site) -> None:
    site.install("one", {"AForCausalLM": "one.model:A [fast]"}, extras=["fast"])
    (provider,) = as_record(site.catalog(plugins=frozenset()), Filter())["providers"]
    assert set(provider) == {
        *("group", "architecture", "distribution", "version", "target"),
        *("origin", "place", "state", "reasons"),
    }
    assert provider["target"] == "one.model:A [fast]"
    assert provider["state"] == "excluded"
    assert provider["reasons"][0]["code"] == "plugin-not-selected"
    assert set(provider["reasons"][0]) == {"code", "problem", "fix"}
    assert Path(provider["place"]).parent == site.folder


def test_metadata_cannot_steer_the_terminal(site: Site) -> None:
    site.install("evil", {"AForCausalLM": "evil:A"}, version="1\x1b[2J\x07\u202e")
    site.install("worse", {"BForCausalLM": "\x1b[2J"})
    shown = text(site.catalog())
    assert "evil" in shown
    assert all(char.isprintable() for line in shown.split("\n") for char in line)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_long_names_never_break_the_table(site: Site, columns: int) -> None:
    site.install("p" * 70, {"A" * 90: "one:A", "Short": "one:B", "B" * 9000: "one:B"})
    lines = text(site.catalog(), columns).splitlines()
    assert max(map(len, lines)) <= columns
    if columns == 120:
        assert "A" * 90 in "\n".join(lines)
    at = lines[0].index("PLUGIN")
    assert all(line[at : at + 3] == "ppp" for line in lines if "ppp" in line)


def test_wrapping_keeps_commands_and_line_breaks_whole() -> None:
    command = "pip install 'flash-linear-attention>=0.4,<0.5'"
    lines = layout.wrapped(f"one two three four five six; run: {command}, or else", 60, 4, 2)
    assert sum(command in line for line in lines) == 1
    assert layout.wrapped("first\n  second: third", 40) == ["first", "  second: third"]
    assert layout.wrapped("", 40) == [""]
    path = "/".join(["folder"] * 20)
    assert path in "\n".join(layout.wrapped(f"see {path} there", 40))


@pytest.mark.parametrize(
    ("stated", "columns"), [("80", 80), ("7", 40), ("", 120), ("wide", 120), ("-5", 120)]
)
def test_width(monkeypatch: pytest.MonkeyPatch, stated: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", stated)
    assert layout.width() == columns


def test_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("list")
    assert done.code == 0 and done.err == ""
    assert "LlamaForCausalLM" in done.out
    assert json.loads(run("list", "--json").out)["providers"]
    done = run("list", "--state", "BROKEN", "--group", "all", "nothing*")
    assert done.code == 0 and "Nothing here matches" in done.out
    monkeypatch.setenv("ARCHZOO_STRICT", "per\x1bhaps")
    done = run("list")
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("error: ARCHZOO_STRICT: 'per") and "\x1b" not in done.err
