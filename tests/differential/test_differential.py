"""A few random configurations of each family; ``make differential`` runs 200."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from differential.compare import outcome_of
from differential.configs import ARCHITECTURES, random_config
from differential.refusals import reason_of

import archzoo
from archzoo.errors import ConfigError

CONFIGS = 5
"""Of each family."""
SERVED = 3
"""Seed of a Llama configuration with nothing unusual."""


@pytest.mark.parametrize("seed", range(CONFIGS))
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_nothing_differs_from_transformers(family: str, seed: int, tmp_path: Path) -> None:
    outcome = outcome_of(family, seed, tmp_path)
    assert outcome.difference is None
    assert outcome.refusal is None or reason_of(outcome.refusal) is not None, outcome.refusal


def test_a_seed_means_one_configuration() -> None:
    assert random_config("qwen3", 4) == random_config("qwen3", 4)
    assert random_config("qwen3", 4) != random_config("qwen3", 5)


def test_a_refusal_needs_a_reason() -> None:
    assert reason_of(ConfigError("nobody expected this", "field", "file")) is None


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(
        *args: Any, load: Callable[..., archzoo.Model] = archzoo.load, **options: Any
    ) -> Any:
        model = load(*args, **options)
        for runner in model.engine.runners:
            if runner.module.model.norm is not None:
                runner.module.model.norm.weight.data.mul_(1.01)
        return model

    monkeypatch.setattr(archzoo, "load", scaled)
    found = outcome_of("llama", SERVED, tmp_path).difference
    assert found is not None and "logits of 1 tokens off by" in found


def test_a_preflight_that_says_otherwise_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise ConfigError("not this one", "field", "file")

    monkeypatch.setattr(archzoo, "preflight", refuse)
    found = outcome_of("llama", SERVED, tmp_path).difference
    assert found is not None and "preflight refuses what load takes" in found
