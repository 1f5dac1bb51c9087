"""What nobody installed serves, and who would: data that archzoo ships and plugins extend."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo.errors import UnknownArchitectureError
from archzoo.registry import Group, Verdict, decide, resolve_from

ROOT = Path(__file__).parents[2]


def shipped() -> dict[str, str]:
    text = files("archzoo.registry").joinpath("tombstones.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def test_shipped_data_is_what_our_plugins_offer() -> None:
    offered: dict[str, str] = {}
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        entries = project.get("entry-points", {}).get(str(Group.MODELS), {})
        offered |= dict.fromkeys(entries, project["name"])
    assert len(offered) >= 8
    assert shipped() == offered
    assert list(shipped()) == sorted(offered)


def test_every_shipped_name_is_told_with_the_command(site: Site) -> None:
    for name, home in shipped().items():
        decision = decide(site.catalog(), [name])
        assert decision.verdict is Verdict.UNKNOWN
        assert decision.hint == f"{name} is served by {home}; run: pip install {home}"


def test_the_first_name_that_is_known_is_told(site: Site) -> None:
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(site.catalog(), ["ZqNobody", "MistralForCausalLM", "LlamaForCausalLM"])
    assert caught.value.hint.startswith("MistralForCausalLM is served by archzoo-llama; ")


def test_a_home_that_is_installed_is_not_told_to_install(site: Site) -> None:
    """An older archzoo-llama without this architecture: the same command would change nothing."""
    site.install("archzoo-llama", {"LlamaForCausalLM": "a:A"})
    hint = decide(site.catalog(), ["Phi3ForCausalLM"]).hint
    assert hint.startswith("installed plugins: archzoo-llama;")


def test_extended_by_a_plugin(site: Site) -> None:
    lines = {
        "ZqFooForCausalLM": "zq_home",
        "LlamaForCausalLM": "zq_thief",  # what archzoo ships goes first
        "ZqBad": "not a name",
        "ZqLater": "not a name",
    }
    site.install("a-list", lines, group=Group.TOMBSTONES)
    site.install(
        "b-list", {"ZqFooForCausalLM": "zq_other", "ZqLater": "zq_other"}, group=Group.TOMBSTONES
    )
    catalog = site.catalog()
    assert decide(catalog, ["ZqFooForCausalLM"]).hint == (
        "ZqFooForCausalLM is served by zq-home; run: pip install zq-home"
    )
    assert "pip install archzoo-llama" in decide(catalog, ["LlamaForCausalLM"]).hint
    assert "pip install zq-other" in decide(catalog, ["ZqLater"]).hint
    assert decide(catalog, ["ZqBad"]).hint.startswith("installed plugins: ")


def test_a_tombstone_serves_nothing_and_contests_nothing(site: Site) -> None:
    site.install("list", {"A": "zq_home"}, group=Group.TOMBSTONES)
    site.install("p", {"A": "a:A"})
    decision = decide(site.catalog(), ["A"])
    assert decision.verdict is Verdict.SERVED and len(decision.candidates) == 1


def test_other_groups_have_no_tombstones(site: Site) -> None:
    decision = decide(site.catalog(), ["LlamaForCausalLM"], Group.QUANTIZATION)
    assert "is served by" not in decision.hint
