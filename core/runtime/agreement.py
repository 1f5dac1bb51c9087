"""Processes that serve one model must resolve alike; found out before anything is built."""

from __future__ import annotations

from ..errors import RegistryError
from ..registry import Catalog, differences, facts, fingerprint
from .executor import Executor


def check_same_catalog(source: Catalog, executor: Executor) -> None:
    """Nothing, when every process's catalog says the same (collective).

    Args:
        source: this process's catalog.
        executor: knows the other processes.

    Raises:
        RegistryError: on every process, when one differs from rank 0's; names what differs.
    """
    if executor.processes == 1:  # a fingerprint looks at every plugin's requirements
        return
    prints = executor.everyones([fingerprint(source)])
    if all(each == prints[0] for each in prints):
        return
    everyones = executor.everyones(facts(source))
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            raise RegistryError(
                f"rank {rank} resolves models differently from rank 0: "
                f"{differences(everyones[0], theirs)}; install the same plugins and set the same "
                "ARCHZOO_ variables on every host"
            )
