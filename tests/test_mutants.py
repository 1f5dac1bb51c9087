"""Mutants fit the code as it is; ``make mutants`` plants them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from mutants.catalog import MUTANTS
from mutants.mutant import StaleMutant

ROOT = Path(__file__).parent.parent


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text()


def test_every_mutant_can_be_planted() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS), "two share a name"
    stale: list[str] = []
    for mutant in MUTANTS:
        try:
            ast.parse(mutant.planted(text(mutant.file)))
        except (StaleMutant, SyntaxError, OSError) as error:
            stale.append(f"{mutant.name}: {error}")
    assert not stale, "\n".join(stale)


def test_every_mutant_names_tests_that_exist() -> None:
    absent = [
        f"{mutant.name}: {killer}"
        for mutant in MUTANTS
        for killer in mutant.killers
        if not _exists(*killer.split("::"))
    ]
    assert not absent, "\n".join(absent)


def _exists(file: str, *names: str) -> bool:
    """Whether a file has a test, which may be in a class."""
    return (ROOT / file).exists() and f"def {names[-1].partition('[')[0]}(" in text(file)
