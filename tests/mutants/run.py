"""Proof that the suite notices: plant faults one by one in a copy, and see named tests fail.

A mutant counts only if the code still imports, shapes still fit, and an assertion of each test it
names fails; a crash is no proof. The working tree is never touched::

    python tests/mutants/run.py                 all
    python tests/mutants/run.py rope kv-heads   those whose name contains one of the words
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.catalog import MUTANTS
from mutants.mutant import Mutant
from mutants.trial import ROOT, WHOLE_TIME_LIMIT, copy_tree, run_tests, short, try_mutant


def chosen(words: list[str]) -> list[Mutant]:
    """Mutants by parts of their names; all without words."""
    found = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    if not found:
        names = [mutant.name for mutant in MUTANTS]
        raise SystemExit(f"no mutant is named like {' or '.join(words)}; there are:\n{names}")
    return found


def unmutated_fails(pristine: Path, mutants: list[Mutant]) -> list[str]:
    """What is wrong with the named tests before any fault is planted."""
    nodes = list(dict.fromkeys(node for mutant in mutants for node in mutant.killers))
    record = run_tests(pristine, nodes, keep_bytecode=True, limit=WHOLE_TIME_LIMIT)
    if record.problem:
        return [record.problem]
    absent = [f"{node}: no such test" for node in nodes if not record.of(node)]
    return absent + [f"{case.test}: {case.says}" for case in record.cases if not case.passed]


def main() -> int:
    """Run, print a line for each mutant, and say how many were killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of mutants' names; all without")
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at once")
    options = parser.parse_args()
    mutants, started = chosen(options.words), time.monotonic()
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pristine = copy_tree(ROOT, Path(folder, "pristine").resolve())
        problems = unmutated_fails(pristine, mutants)
        if problems:
            print("The named tests must pass on the code as it is:", *problems, sep="\n  ")
            return 1
        killed = try_all(mutants, pristine, options.workers)
    failed = len(mutants) - killed
    print(f"\n{len(mutants)} mutants in {time.monotonic() - started:.0f} s")
    print(f"{killed} passed, {failed} failed")
    return 1 if failed else 0


def prepare_environment() -> None:
    """What every process inherits: one thread each, and no setting of the caller's shell."""
    for name in [name for name in os.environ if name.startswith(("ARCHZOO_", "PYTEST_"))]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"


def try_all(mutants: list[Mutant], pristine: Path, workers: int) -> int:
    """How many mutants were killed; a line for each as it is decided, in order."""
    killed = 0
    width = max(len(mutant.name) for mutant in mutants)
    with ThreadPoolExecutor(workers) as pool:
        verdicts = pool.map(lambda m: try_mutant(m, pristine, pristine.parent / m.name), mutants)
        for mutant, verdict in zip(mutants, verdicts, strict=True):
            killed += verdict.fate == "killed"
            print(f"{verdict.fate:8}  {mutant.name:{width}}  {mutant.stands_for}", flush=True)
            print(f"{'':8}  {'':{width}}  {short(mutant.file)}: {verdict.detail}", flush=True)
    return killed


if __name__ == "__main__":
    sys.exit(main())
