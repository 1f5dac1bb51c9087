"""Distributions that want the same name: of an architecture, or of a package."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from install.conftest import MakeEnvironment, Wheels
from install.environments import Environment
from install.wheelhouse import install_wheels

TWINS = ("Castor", "Pollux")


class TestSameArchitecture:
    @pytest.fixture
    def environment(self, fresh_with_llama: Environment, wheels: Wheels) -> Environment:
        fresh_with_llama.install(wheels["archzoo_rival"])
        return fresh_with_llama

    def test_both_claims_are_listed(self, environment: Environment) -> None:
        claims = environment.listed()["LlamaForCausalLM"]
        assert {claim["distribution"] for claim in claims} == {"archzoo-llama", "archzoo-rival"}

    def test_resolve_names_both_and_serves_what_is_not_contested(
        self, environment: Environment
    ) -> None:
        answers = environment.resolved("LlamaForCausalLM", "RivalForCausalLM")
        contested = answers["LlamaForCausalLM"]
        assert contested["error"] == "DuplicateArchitectureError", contested
        assert "archzoo-llama 0.1.0" in contested["text"]
        assert "archzoo-rival 1.0" in contested["text"]
        assert answers["RivalForCausalLM"]["class"] == "RivalForCausalLM"

    def test_the_user_can_choose(self, environment: Environment) -> None:
        answers = environment.resolved("LlamaForCausalLM", ARCHZOO_PLUGINS="archzoo-rival")
        assert Path(answers["LlamaForCausalLM"]["file"]).parent.name == "rival_models"


class TestSamePackage:
    """Castor and Pollux install the same files with other content."""

    def assert_one_serves(self, environment: Environment) -> str:
        """All names of one twin are served; those of the other are errors that name both."""
        names = [f"{twin}{kind}" for twin in TWINS for kind in ("ForCausalLM", "Model")]
        answers = environment.resolved(*names)
        (served,) = (twin for twin in TWINS if "class" in answers[f"{twin}ForCausalLM"])
        assert answers[f"{served}Model"]["class"] == "Model"
        for name in names:
            if not name.startswith(served):
                assert answers[name].get("error") == "PluginLoadError", answers[name]
                assert answers[name]["code"] == "module-shadowed", answers[name]
                assert "archzoo-castor" in answers[name]["text"], answers[name]
                assert "archzoo-pollux" in answers[name]["text"], answers[name]
        return served

    def test_what_the_later_overwrote_is_an_error(self, fresh: Environment, wheels: Wheels) -> None:
        fresh.install(wheels["archzoo_castor"], wheels["archzoo_pollux"])
        self.assert_one_serves(fresh)

    @pytest.mark.parametrize("order", [TWINS, TWINS[::-1]])
    def test_what_the_first_on_the_path_hides_is_an_error(
        self,
        make_environment: MakeEnvironment,
        core_overlay: Path,
        wheels: Wheels,
        tmp_path: Path,
        order: tuple[str, ...],
    ) -> None:
        overlays = [
            install_wheels([wheels[f"archzoo_{twin.lower()}"]], tmp_path / twin) for twin in order
        ]
        served = self.assert_one_serves(make_environment(core_overlay, *overlays))
        assert served == order[0]

    def test_a_package_called_archzoo_llama_hides_the_real_one_and_says_so(
        self, fresh_with_llama: Environment, wheels: Wheels, llama_overlay: Path
    ) -> None:
        # What is installed into the environment itself comes before the overlays.
        fresh_with_llama.install(wheels["archzoo_squatter"])
        answers = fresh_with_llama.resolved("LlamaForCausalLM", "SquatterForCausalLM")
        assert answers["SquatterForCausalLM"]["class"] == "SquatterForCausalLM"
        hidden = answers["LlamaForCausalLM"]
        assert (hidden["error"], hidden["code"]) == ("PluginLoadError", "module-shadowed"), hidden
        places = (str(llama_overlay), str(fresh_with_llama.site))
        for word in ("archzoo-llama 0.1.0", "archzoo-squatter 1.0", *places):
            assert word in hidden["text"]


def test_a_package_named_like_the_standard_library_is_an_error_that_shows_both_files(
    fresh: Environment, wheels: Wheels
) -> None:
    fresh.install(wheels["archzoo_standard"], wheels["archzoo_optional"])
    answers = fresh.resolved("StandardForCausalLM", "PlainForCausalLM")
    hidden = answers["StandardForCausalLM"]
    assert (hidden["error"], hidden["code"]) == ("PluginLoadError", "module-shadowed"), hidden
    own = fresh.site / "statistics/__init__.py"
    for word in ("archzoo-standard 1.0", str(statistics.__file__), str(own)):
        assert word in hidden["text"]
    assert answers["PlainForCausalLM"]["class"] == "PlainForCausalLM"


def test_packages_named_like_parts_of_archzoo_are_nothing_special(
    fresh: Environment, wheels: Wheels
) -> None:
    fresh.install(wheels["archzoo_homonym"])
    for name, answer in fresh.resolved("ModelsForCausalLM", "CoreForCausalLM").items():
        assert answer.get("class") == name, answer
        assert Path(answer["file"]).is_relative_to(fresh.site)
