"""One trial: a copy of the tree, its named tests in a process of their own, a verdict.

Processes are forked from a server that has imported torch and transformers and nothing of this
repository: that is most of what a pytest run would otherwise spend.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from mutants.mutant import Mutant, StaleMutant
from mutants.recorder import Case, Recorder

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "src", "plugins", "tests", "pyproject.toml")
PRELOADED = ("torch", "transformers.models.llama.modeling_llama")
TIME_LIMIT = 240
"""Seconds for the tests of one mutant; a mutant that hangs has not been killed by an assertion."""
WHOLE_TIME_LIMIT = 1200
"""Seconds for the tests of all of them together."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(list(PRELOADED))


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Args:
        fate: ``killed``, ``SURVIVED`` or ``invalid``.
        detail: which tests killed it, which did not notice, or what is wrong with it.
    """

    fate: str
    detail: str


@dataclass(frozen=True)
class Record:
    """What pytest said.

    Args:
        cases: how each test ended.
        origins: files that the packages under test were imported from.
        problem: why the cases cannot be judged, or empty.
    """

    cases: Sequence[Case] = ()
    origins: Sequence[str] = ()
    problem: str = ""

    def of(self, node: str) -> list[Case]:
        """Every case of a node id."""
        return [c for c in self.cases if c.test == node or c.test.startswith(f"{node}[")]


def copy_tree(source: Path, target: Path) -> Path:
    """Copy what tests need; times of change and links stay, so that bytecode stays valid."""
    target.mkdir(parents=True)
    for part in PARTS:
        path = source / part
        if path.is_dir():
            shutil.copytree(path, target / part, symlinks=True)
        else:
            shutil.copy2(path, target / part)
    return target


def run_tests(
    tree: Path, nodes: Iterable[str], *, keep_bytecode: bool = False, limit: int = TIME_LIMIT
) -> Record:
    """Run tests of a copied tree against that copy, in a new process that has so many seconds."""
    ours, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_child, args=(theirs, tree, list(nodes), keep_bytecode))
    process.start()
    theirs.close()
    if not ours.poll(limit):
        process.kill()
        process.join()
        return Record(problem=f"not done after {limit} s")
    try:
        record: Record = ours.recv()
    except EOFError:
        record = Record(problem="the process died before pytest was through")
    process.join()
    strangers = [at for at in record.origins if not at.startswith(f"{tree}{os.sep}")]
    if strangers:
        return Record(problem=f"not the copy was tested, but {strangers[0]}")
    return record


def _child(pipe: Connection, tree: Path, nodes: list[str], keep_bytecode: bool) -> None:
    """Run pytest in this process and send its record. A mutant's bytecode is never kept."""
    plugins = sorted(file.parent for file in tree.glob("plugins/*/pyproject.toml"))
    search = [str(part) for part in (tree / "src", *plugins, tree / "tests")]
    sys.path[:0] = search
    os.environ["PYTHONPATH"] = os.pathsep.join(search)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some would warn about what is preloaded
    os.chdir(tree)
    sys.dont_write_bytecode = not keep_bytecode
    log = os.open(tree / "pytest.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import pytest

    recorder = Recorder()
    code = pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", *nodes], plugins=[recorder])
    names = ["archzoo", *(f"archzoo_{plugin.name}" for plugin in plugins)]
    modules = [sys.modules.get(name) for name in names]
    origins = [str(module.__file__) for module in modules if module is not None]
    pipe.send(Record(recorder.cases, origins, _problem(code, recorder, tree)))


def _problem(code: int, recorder: Recorder, tree: Path) -> str:
    """What kept pytest from running the tests, or empty."""
    for case in recorder.cases:
        if case.phase == "collect":
            return f"{case.test} does not import: {case.says}"
    if code in (0, 1):
        return ""
    sys.stdout.flush()
    lines = (tree / "pytest.log").read_text(errors="replace").strip().splitlines()
    return f"pytest ended with {int(code)}: {' / '.join(lines[-3:])}"


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
    for case in record.cases:
        if not case.passed and not (case.phase == "call" and case.asserted):
            crash = f"{short(case.test)} crashed in {case.phase}: {case.says[:160]}"
            return Verdict("invalid", crash)
    unmoved = [node for node in mutant.killers if all(c.passed for c in record.of(node))]
    if unmoved:
        return Verdict("SURVIVED", "not noticed by " + ", ".join(map(short, unmoved)))
    return Verdict("killed", "by " + ", ".join(map(short, mutant.killers)))


def short(node: str) -> str:
    """A node id without its folders."""
    return node.rsplit("/", 1)[-1]
