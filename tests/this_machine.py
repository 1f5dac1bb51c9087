"""Pytest plugin: tests take one thread of this machine and any time; what its CPU packs is said.

Several threads that spin on tiny operations take several times the processor time and, beside other
work, the wall time too. A test about threads asks for them itself. What a launcher left in the
environment is not for tests.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported
    os.environ[_variable] = "1"
for _variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    os.environ.pop(_variable, None)

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which real packer ran."""
    from packers import packer_line

    terminalreporter.write_line(packer_line())
