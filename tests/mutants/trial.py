"""One trial: a copy of the tree, its named tests in a process of their own, a verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants.mutant import Mutant, StaleMutant
from mutants.recorder import OUTPUT

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "src", "plugins", "tests", "pyproject.toml")
TIME_LIMIT = 240
"""Seconds for the tests of one mutant; a mutant that hangs has not been killed by an assertion."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Args:
        fate: ``killed``, ``SURVIVED`` or ``invalid``.
        detail: which assertion killed it, which tests did not notice, or what is wrong with it.
    """

    fate: str
    detail: str


@dataclass(frozen=True)
class Record:
    """What pytest said.

    Args:
        cases: entries of the recorder plugin.
        problem: why they cannot be judged, or empty.
    """

    cases: Sequence[dict[str, Any]]
    problem: str = ""

    def of(self, node: str) -> list[dict[str, Any]]:
        """Entries of one node id, all of its cases."""
        return [c for c in self.cases if c["test"] == node or c["test"].startswith(f"{node}[")]


def copy_tree(source: Path, target: Path) -> Path:
    """Copy what tests need; times of change and links stay, so that bytecode stays valid."""
    for part in PARTS:
        path = source / part
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target / part, symlinks=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / part, follow_symlinks=False)
    return target


def run_tests(tree: Path, nodes: Iterable[str], *, keep_bytecode: bool = False) -> Record:
    """Run tests of a copied tree against that copy."""
    output = tree / "record.json"
    flags = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "mutants.recorder")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *flags, *nodes],
            cwd=tree,
            env=_environment(tree, output, keep_bytecode),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Record((), f"not done after {TIME_LIMIT} s")
    if done.returncode not in (0, 1) or not output.is_file():
        tail = " / ".join((done.stdout + done.stderr).strip().splitlines()[-4:])
        return Record((), f"pytest ended with {done.returncode}: {tail}")
    record = json.loads(output.read_text())
    strangers = [at for at in record["origins"].values() if not at.startswith(str(tree))]
    problem = f"the copy was not what ran, but {strangers[0]}" if strangers else ""
    return Record(record["cases"], problem)


def _environment(tree: Path, output: Path, keep_bytecode: bool) -> dict[str, str]:
    """The copy goes before the editable install; a mutant's bytecode is never kept."""
    search = (tree / "src", tree / "plugins/llama", tree / "tests")
    changes = {
        "PYTHONPATH": os.pathsep.join(map(str, search)),
        "OMP_NUM_THREADS": "1",
        OUTPUT: str(output),
    }
    if not keep_bytecode:
        changes["PYTHONDONTWRITEBYTECODE"] = "1"
    ours = {key: value for key, value in os.environ.items() if not key.startswith("ARCHZOO_")}
    return {**ours, **changes}


def try_mutant(mutant: Mutant, pristine: Path, tree: Path) -> Verdict:
    """Plant a mutant in a fresh copy and see whether its tests notice."""
    copy_tree(pristine, tree)
    try:
        mutant.plant(tree)
        return judge(mutant, run_tests(tree, mutant.killers))
    except StaleMutant as error:
        return Verdict("invalid", str(error))
    finally:
        shutil.rmtree(tree)


def judge(mutant: Mutant, record: Record) -> Verdict:
    """Killed when each named test fails, and only assertions made them fail."""
    if record.problem:
        return Verdict("invalid", record.problem)
    failed = [case for case in record.cases if not case["passed"]]
    for case in failed:
        if case["phase"] != "call" or not case["assertion"]:
            what = f"{case['type']} in {case['phase']}: {case['says'][:160]}"
            return Verdict("invalid", f"{short(case['test'])} crashed, {what}")
    unmoved = [node for node in mutant.killers if all(c["passed"] for c in record.of(node))]
    if unmoved:
        return Verdict("SURVIVED", "not noticed by " + ", ".join(map(short, unmoved)))
    return Verdict("killed", ", ".join(map(short, mutant.killers)))


def short(node: str) -> str:
    """A node id without its folders."""
    return node.rsplit("/", 1)[-1]
