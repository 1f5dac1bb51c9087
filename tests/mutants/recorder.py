"""Pytest plugin: how each test ended, by the type of what it raised."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Case:
    """One test body, or a set-up, tear-down or collection that failed.

    Args:
        test: node id.
        phase: ``call``, ``setup``, ``teardown`` or ``collect``.
        passed: whether nothing was raised.
        asserted: whether an assertion of the test was what failed.
        says: type and first line of what was raised.
    """

    test: str
    phase: str
    passed: bool
    asserted: bool = False
    says: str = ""


class Recorder:
    """Collects cases while pytest runs.

    Attributes:
        cases: in the order they ended.
    """

    def __init__(self) -> None:
        """Nothing has run."""
        self.cases: list[Case] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the outcome of a test."""
        report = yield
        if call.excinfo is not None:
            self.cases.append(_failed(item.nodeid, call.when, call.excinfo))
        elif call.when == "call":
            self.cases.append(Case(item.nodeid, call.when, True))
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep a module that does not import."""
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            self.cases.append(Case(report.nodeid, "collect", False, False, lines[-1]))


def _failed(test: str, phase: str, found: pytest.ExceptionInfo[BaseException]) -> Case:
    first = (str(found.value).strip().splitlines() or [""])[0]
    unmet = found.type is pytest.fail.Exception and first.startswith("DID NOT")
    asserted = unmet or issubclass(found.type, AssertionError)
    return Case(test, phase, False, asserted, f"{found.type.__name__}: {first}")
