"""A plugin that is gone, and what half-removed plugins leave behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from install.conftest import MakeEnvironment, Wheels
from install.environments import Environment

INSTALL_LLAMA = "pip install archzoo-llama"


@pytest.fixture
def installed(fresh: Environment, wheels: Wheels) -> Environment:
    """archzoo-llama in the environment itself, where it can be damaged."""
    fresh.install(wheels["archzoo_llama"])
    return fresh


@pytest.fixture(scope="module")
def uninstalled(
    make_environment: MakeEnvironment, core_overlay: Path, wheels: Wheels
) -> Environment:
    """archzoo-llama was there, and pip removed it."""
    environment = make_environment(core_overlay)
    environment.install(wheels["archzoo_llama"])
    assert "LlamaForCausalLM" in environment.listed()
    environment.uninstall("archzoo-llama")
    assert not list(environment.site.glob("archzoo_llama*"))
    return environment


def assert_gone(environment: Environment) -> None:
    assert environment.listed() == {}
    answer = environment.resolved("LlamaForCausalLM")["LlamaForCausalLM"]
    assert answer["error"] == "UnknownArchitectureError", answer
    assert INSTALL_LLAMA in answer["text"]


def test_after_pip_uninstall_it_is_gone(uninstalled: Environment) -> None:
    assert_gone(uninstalled)


@pytest.mark.parametrize(
    "leftover",
    [
        # pip removes the caches it knows; those of another interpreter keep the folder alive.
        "archzoo_llama/__pycache__/model.cpython-399.pyc",
        "archzoo_llama-0.1.0.dist-info/direct_url.json",
        "~rchzoo_llama-0.1.0.dist-info/entry_points.txt",
    ],
)
def test_leftovers_are_no_plugin(uninstalled: Environment, leftover: str) -> None:
    path = uninstalled.site / leftover
    path.parent.mkdir(parents=True)
    path.write_text("[archzoo.models]\nLlamaForCausalLM = archzoo_llama.model:LlamaForCausalLM\n")
    try:
        assert_gone(uninstalled)
    finally:
        shutil.rmtree(uninstalled.site / leftover.partition("/")[0])


def test_modules_without_metadata_are_no_plugin(installed: Environment) -> None:
    (info,) = installed.site.glob("archzoo_llama-*.dist-info")
    shutil.rmtree(info)
    assert (installed.site / "archzoo_llama/model.py").exists()
    assert_gone(installed)


def test_metadata_without_modules_is_an_error_that_names_the_distribution(
    installed: Environment,
) -> None:
    shutil.rmtree(installed.site / "archzoo_llama")
    answer = installed.resolved("LlamaForCausalLM")["LlamaForCausalLM"]
    assert (answer["error"], answer["code"]) == ("PluginLoadError", "module-missing"), answer
    for word in ("archzoo-llama 0.1.0", "archzoo_llama", "pip install --force-reinstall"):
        assert word in answer["text"]
