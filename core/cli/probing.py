"""Import every ready provider, each in an interpreter of its own: one crash disturbs no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from ..registry import Catalog, Group, ProviderState
from .probe import EXTERNAL
from .records import DoctorCode, Finding

AT_ONCE = 2
SLOW_SECONDS = 10.0
"""An import that takes longer is worth a note; importing torch takes 2 to 4 s of it."""

_AUTHOR = "report it to the distribution's author"
_POLL = 0.02
_MOST_BYTES = 2**20
_CLASS_GROUPS = tuple(group for group in Group if group.names_classes)


@dataclass(frozen=True)
class Target:
    """Something to import.

    Args:
        group: group of the claim; ``external`` for a package whose claims only its import tells.
        name: what is claimed; empty where a whole plugin is asked.
        distribution: who claims it.
        version: its version.
        target: what is imported.
    """

    group: str
    name: str
    distribution: str
    version: str
    target: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Group, name and distribution: what tells targets apart."""
        return self.group, self.name, self.distribution

    @property
    def label(self) -> str:
        """What the screen calls it."""
        made_by = f"{self.distribution} {self.version}".rstrip()
        return f"{self.name} of {made_by}" if self.name else f"{made_by} ({self.target})"


@dataclass(frozen=True)
class Probe:
    """What importing it came to.

    Args:
        target: what was imported.
        outcome: ok, skipped (an optional dependency is missing) or failed.
        reasons: why it is not ok.
        notes: what is worth knowing all the same.
        seconds: how long the import took.
    """

    target: Target
    outcome: str
    reasons: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    seconds: float


@dataclass
class _Running:
    """One interpreter at work."""

    target: Target
    process: subprocess.Popen[bytes]
    result: IO[bytes]
    said: IO[bytes]
    began: float = field(default_factory=time.monotonic)

    def end(self) -> tuple[str, str]:
        """Stop it and whatever it started; gives what it sent and what it printed."""
        _kill(self.process)
        return _content(self.result), _content(self.said)


Tell = Callable[[int, int, Sequence[str]], None]
"""Called with (done, of, labels of what runs)."""


def targets(catalog: Catalog) -> tuple[Target, ...]:
    """Everything that is ready: classes one by one, hook plugins and undecided packages whole."""
    found = [
        Target(str(group), each.name, each.distribution, each.version, each.target)
        for group in _CLASS_GROUPS
        for each in catalog.providers(group)
        if each.state is ProviderState.READY
    ]
    hooks: dict[tuple[str, str], list[str]] = {}
    for each in catalog.providers(Group.PLUGINS):
        if each.state is ProviderState.READY:
            modules = hooks.setdefault((each.distribution, each.version), [])
            modules.append(each.path)
    found += [Target(str(Group.PLUGINS), "", *who, ", ".join(hooks[who])) for who in hooks]
    for package in catalog.external_packages():
        if package.undecided:
            found.append(Target(EXTERNAL, "", package.name, "", ", ".join(package.undecided)))
    return tuple(found)


def probe(
    wanted: Sequence[Target], timeout: float, tell: Tell = lambda *_: None
) -> tuple[Probe, ...]:
    """Import them, a few at a time, and report in the order given.

    Args:
        wanted: what to import.
        timeout: seconds for each.
        tell: told of progress.
    """
    waiting, running = list(wanted), list[_Running]()
    done: dict[Target, Probe] = {}
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_start(waiting.pop(0)))
            tell(len(done), len(wanted), [each.target.label for each in running])
            for each in tuple(running):
                over = time.monotonic() - each.began > timeout
                if each.process.poll() is not None or over:
                    running.remove(each)
                    done[each.target] = _finish(each, timeout)
            time.sleep(_POLL)
    finally:
        for each in running:
            each.end()
    return tuple(done[each] for each in wanted)


def _start(target: Target) -> _Running:
    # Files and not pipes: nothing a plugin prints, or leaves running, can make a reader wait.
    result, said = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "archzoo.cli.probe"],
        stdin=subprocess.PIPE,
        stdout=result,
        stderr=said,
        # Finds archzoo itself; the path that plugins see is set by the request.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    request = {"group": target.group, "name": target.name, "distribution": target.distribution}
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps({**request, "path": sys.path}).encode())
    return _Running(target, process, result, said)


def _finish(running: _Running, timeout: float) -> Probe:
    """What became of an interpreter that ended, or whose time is up."""
    seconds = time.monotonic() - running.began
    code = running.process.poll()
    sent, said = running.end()
    result = _result(sent)
    printed = [line for line in said.splitlines() if line.strip()]
    if result is None or code is None:
        reason = _no_result(running.target, code, timeout, printed)
        return Probe(running.target, "failed", (reason,), (), seconds)
    reasons, notes = ([Finding(**each) for each in result[key]] for key in ("reasons", "notes"))
    notes += _remarks(printed, result["seconds"])
    return Probe(running.target, result["outcome"], tuple(reasons), tuple(notes), result["seconds"])


def _content(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read(_MOST_BYTES).decode("utf-8", "replace")


def _result(text: str) -> Any:
    """What the interpreter sent; None when it died before that was complete."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _no_result(target: Target, code: int | None, timeout: float, printed: Sequence[str]) -> Finding:
    if code is None:
        problem = f"importing {target.target} is not done after {timeout:g} s"
        return Finding(
            DoctorCode.IMPORT_TIMEOUT, problem, f"give it longer with --probe-timeout, or {_AUTHOR}"
        )
    how = f"exit code {code}" if code >= 0 else f"signal {_signal(-code)}"
    problem = f"importing {target.target} ended the interpreter ({how})"
    last = f"; the last it printed: {printed[-1][:200]}" if printed else ""
    return Finding(DoctorCode.INTERPRETER_DIED, problem + last, f"uninstall it, or {_AUTHOR}")


def _remarks(printed: Sequence[str], seconds: float) -> Iterator[Finding]:
    if printed:
        first = printed[0] if len(printed[0]) <= 60 else f"{printed[0][:57]}..."
        problem = f"it prints {len(printed)} lines at import, the first is {first!r}"
        yield Finding(DoctorCode.PRINTS, problem, _AUTHOR)
    if seconds > SLOW_SECONDS:
        yield Finding(DoctorCode.SLOW, f"its import takes {seconds:.0f} s", _AUTHOR)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End an interpreter and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
