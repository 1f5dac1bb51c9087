"""What each combination of installed distributions can do, and says it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from install.conftest import Wheels
from install.environments import Environment

import archzoo
import tiny

INSTALL_LLAMA = "pip install archzoo-llama"
LOGITS = """
import json, sys
import archzoo
print(json.dumps(archzoo.load(sys.argv[1]).logits(json.loads(sys.argv[2])).tolist()))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_llama(tmp_path_factory.mktemp("checkpoint"))[0]


def codes_of(claim: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in claim["reasons"]]


class TestCoreAlone:
    def test_list_is_empty_and_says_what_to_install(self, core_alone: Environment) -> None:
        assert core_alone.listed() == {}
        assert INSTALL_LLAMA in core_alone.output("-m", "archzoo", "list")

    def test_resolve_says_what_to_install(self, core_alone: Environment) -> None:
        answers = core_alone.resolved("LlamaForCausalLM", "NobodyForCausalLM")
        for name, answer in answers.items():
            assert answer["error"] == "UnknownArchitectureError", answer
            assert name in answer["text"] and INSTALL_LLAMA in answer["text"]

    def test_a_checkpoint_is_refused_with_the_same_words(
        self, core_alone: Environment, checkpoint: Path
    ) -> None:
        done = core_alone.python("-m", "archzoo", "generate", checkpoint, "--token-ids", "5,6")
        assert done.returncode == 1
        assert "LlamaForCausalLM" in done.stderr and INSTALL_LLAMA in done.stderr
        assert "Traceback" not in done.stderr


class TestCoreAndLlama:
    def test_list_shows_every_architecture_ready(self, with_llama: Environment) -> None:
        listed = with_llama.listed()
        assert {"LlamaForCausalLM", "LlamaModel", "MistralModel", "Phi3Model"} <= set(listed)
        for (claim,) in listed.values():
            assert (claim["distribution"], claim["state"]) == ("archzoo-llama", "ready"), claim

    def test_every_architecture_resolves_from_the_wheel(
        self, with_llama: Environment, llama_overlay: Path
    ) -> None:
        for name, answer in with_llama.resolved(*with_llama.listed()).items():
            assert answer.get("class") == name, answer
            assert Path(answer["file"]).is_relative_to(llama_overlay)

    def test_a_checkpoint_gives_the_logits_of_the_checkout(
        self, with_llama: Environment, checkpoint: Path
    ) -> None:
        ids = tiny.ids_of(9)
        printed = with_llama.output("-c", LOGITS, checkpoint, json.dumps(ids))
        expected = archzoo.load(checkpoint).logits(ids)
        torch.testing.assert_close(torch.tensor(json.loads(printed)), expected, rtol=0, atol=1e-5)


class TestNewerCoreNeeded:
    @pytest.fixture
    def environment(self, fresh: Environment, wheels: Wheels) -> Environment:
        fresh.install(wheels["archzoo_newer"], wheels["archzoo_optional"])
        return fresh

    def test_the_plugin_is_skipped_and_both_versions_are_named(
        self, environment: Environment
    ) -> None:
        (claim,) = environment.listed()["NewerForCausalLM"]
        assert (claim["distribution"], claim["state"]) == ("archzoo-newer", "skipped")
        assert codes_of(claim) == ["core-version"]
        (reason,) = claim["reasons"]
        assert f"archzoo {archzoo.__version__}" in reason["problem"]
        assert ">=7.1" in reason["problem"] and "<8" in reason["problem"]
        assert "pip install 'archzoo" in reason["fix"] and ">=7.1" in reason["fix"]

    def test_resolve_refuses_it_unimported_and_serves_another_plugin(
        self, environment: Environment
    ) -> None:
        answers = environment.resolved("NewerForCausalLM", "PlainForCausalLM")
        refused = answers["NewerForCausalLM"]
        assert refused["error"] == "UnknownArchitectureError"
        assert "archzoo-newer 1.0" in refused["text"] and "pip install 'archzoo" in refused["text"]
        assert "too old" not in refused["text"], "its module was imported"
        assert answers["PlainForCausalLM"]["class"] == "PlainForCausalLM"


class TestExtraMissing:
    @pytest.fixture
    def environment(self, fresh: Environment, wheels: Wheels) -> Environment:
        fresh.install(wheels["archzoo_optional"])
        return fresh

    def test_only_the_entry_that_needs_the_extra_is_skipped(self, environment: Environment) -> None:
        listed = environment.listed()
        ((plain,), (fast,)) = listed["PlainForCausalLM"], listed["FastForCausalLM"]
        assert (plain["state"], plain["reasons"]) == ("ready", [])
        assert (fast["state"], codes_of(fast)) == ("skipped", ["requirement-missing"])
        (reason,) = fast["reasons"]
        assert "no-such-kernels>=2" in reason["problem"] and "pip install" in reason["fix"]

    def test_resolve_serves_one_and_refuses_the_other(self, environment: Environment) -> None:
        answers = environment.resolved("PlainForCausalLM", "FastForCausalLM")
        assert answers["PlainForCausalLM"]["class"] == "PlainForCausalLM"
        refused = answers["FastForCausalLM"]
        assert refused["error"] == "UnknownArchitectureError"
        for word in ("archzoo-optional 1.0", "no-such-kernels>=2", "pip install"):
            assert word in refused["text"]
