"""All mutants: those of every module in ``faults/``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from mutants.mutant import Mutant


def _all() -> tuple[Mutant, ...]:
    files = sorted(Path(__file__).with_name("faults").glob("*.py"))
    modules = [import_module(f"mutants.faults.{file.stem}") for file in files]
    return tuple(mutant for module in modules for mutant in module.MUTANTS)


MUTANTS = _all()
