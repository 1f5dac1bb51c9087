"""Importing each provider in an interpreter of its own, so that none can hurt another, or us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..registry import Provider, ProviderState, Reason, ReasonCode
from .plain import explained

_AT_ONCE = 2
_SLOW = 5.0  # seconds from which an import is worth a remark
_AUTHOR = "report it to the distribution's author, or uninstall it"
_MARK = "archzoo-probe:"


@dataclass(frozen=True)
class Finding:
    """What importing one provider told.

    Args:
        code: stable code of what went wrong; empty when it works.
        problem: what went wrong.
        fix: what to do about it.
        seconds: how long the interpreter ran.
        remarks: what is not wrong and still worth knowing.
    """

    code: str
    problem: str
    fix: str
    seconds: float
    remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For the screen."""
        reasons = []
        if self.code:
            reasons.append(explained(Reason(ReasonCode(self.code), self.problem, self.fix)))
        return reasons + list(self.remarks)

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "ok": self.code == "",
            "code": self.code,
            "problem": self.problem,
            "fix": self.fix,
            "seconds": round(self.seconds, 3),
            "remarks": list(self.remarks),
        }


def probe_all(providers: Sequence[Provider], timeout: float) -> dict[Provider, Finding]:
    """Import every provider that is ready, a few at a time.

    Args:
        providers: those that are not ready are passed over.
        timeout: seconds each may take.
    """
    ready = [each for each in providers if each.state is ProviderState.READY]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        findings = pool.map(lambda each: probe(each, timeout), ready)
    return dict(zip(ready, findings, strict=True))


def probe(provider: Provider, timeout: float) -> Finding:
    """Import one provider in a fresh interpreter."""
    asked = json.dumps([str(provider.group), provider.name, provider.distribution])
    command = [sys.executable, "-m", "archzoo.cli.probe", asked]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        problem = f"its import took more than {timeout:g} s and was ended"
        return Finding(ReasonCode.IMPORT_FAILED, problem, _AUTHOR, time.monotonic() - start)
    seconds = time.monotonic() - start
    out = done.stdout.decode(errors="replace")
    said, mark, told = out.rpartition(_MARK)
    if not mark:
        ended = (
            f"exit code {done.returncode}" if done.returncode >= 0 else f"signal {-done.returncode}"
        )
        problem = f"its import ends the interpreter ({ended})"
        return Finding(ReasonCode.IMPORT_EXITED, problem, _AUTHOR, seconds)
    answer = json.loads(told)
    remarks = list(answer["remarks"])
    printed = len([line for line in said.splitlines() if line.strip()])
    if printed:
        remarks.append(f"prints {printed} lines when it is imported")
    if seconds > _SLOW:
        remarks.append(f"its import took {seconds:.1f} s")
    return Finding(answer["code"], answer["problem"], answer["fix"], seconds, tuple(remarks))


def answer(code: str = "", problem: str = "", fix: str = "", remarks: Sequence[str] = ()) -> str:
    """The line by which a probing interpreter tells its parent how it went."""
    content = {"code": code, "problem": problem, "fix": fix, "remarks": list(remarks)}
    return f"\n{_MARK}{json.dumps(content)}"
