"""Pytest plugin: how each test ended, by the type of what it raised, as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

OUTPUT = "MUTANT_RECORD"
"""Environment variable: the file to write."""

_cases: list[dict[str, Any]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep one entry for each test body, and one for each set-up or tear-down that fails."""
    report = yield
    if call.when == "call" or call.excinfo is not None:
        entry: dict[str, Any] = {"test": item.nodeid, "phase": call.when, "passed": report.passed}
        if call.excinfo is not None:
            entry |= _failure(call.excinfo)
        _cases.append(entry)
    return report


def _failure(found: pytest.ExceptionInfo[BaseException]) -> dict[str, Any]:
    """Type, first words, and whether an assertion of the test gave them."""
    words = str(found.value).strip().splitlines() or [""]
    unmet = found.type is pytest.fail.Exception and words[0].startswith("DID NOT")
    return {
        "type": found.type.__name__,
        "says": words[0],
        "assertion": unmet or issubclass(found.type, AssertionError),
    }


def pytest_sessionfinish() -> None:
    """Write the record, with the place that the code under test came from."""
    packages = {name: sys.modules.get(name) for name in ("archzoo", "archzoo_llama")}
    origins = {name: str(module.__file__) for name, module in packages.items() if module}
    Path(os.environ[OUTPUT]).write_text(json.dumps({"origins": origins, "cases": _cases}))
