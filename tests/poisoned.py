"""Pytest plugin: every new parameter starts filled with NaN, so nothing unwritten can hide.

In production the ledger is the proof; under test a forgotten element also spoils a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest


@pytest.fixture(autouse=True, scope="session")
def poisoned_parameters() -> Iterator[None]:
    """Turn ``poison`` on in every parameter factory."""
    from archzoo.parallel import ParameterFactory

    plain = ParameterFactory.__call__

    def poisoned(self: ParameterFactory, *args: object, **kwargs: object) -> object:
        return plain(replace(self, poison=True), *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParameterFactory, "__call__", poisoned)
        yield
