"""Processes that serve one model must agree: on who serves it, on its config, on every plan.

A difference found later would be a hang, or worse, wrong sums; so it is looked for at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

from ..config import ModelConfig
from ..errors import RegistryError, TopologyError, WeightError
from ..models import DecoderBase
from ..parallel.links import CostTable
from ..registry import Catalog, differences, facts, fingerprint
from .executor import Executor

T = TypeVar("T")


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
    odd = _odd_one(executor.everyones(facts(source)))
    if odd is not None:
        raise RegistryError(
            f"rank {odd[0]} resolves models differently from rank 0: {odd[1]}; install the same "
            "plugins and set the same ARCHZOO_ variables on every host"
        )


def agreed_costs(costs: CostTable | None, executor: Executor) -> CostTable | None:
    """Rank 0's costs, on every process (collective): plans are made from them."""
    if executor.processes == 1:
        return costs
    told = [""] if costs is None else [costs.to_json()]
    (first,), *_ = executor.everyones(told)
    return CostTable.from_json(first) if first else None


def check_same_model(
    config: ModelConfig, module: DecoderBase, settings: Mapping[str, object], executor: Executor
) -> None:
    """Nothing, when every process is about to run the same model in the same way (collective).

    Args:
        config: the model.
        module: of this process's rank; its plans are compared.
        settings: what else must be equal.
        executor: knows the other processes.

    Raises:
        TopologyError: on every process, when one differs from rank 0's; names what differs.
    """
    if executor.processes == 1:
        return
    told = [
        f"{field.name}={getattr(config, field.name)!r}" for field in fields(config) if field.compare
    ]
    told += [f"{name}={value!r}" for name, value in settings.items()]
    told.append(f"plan digest={module.model.stack.book.digest}")
    odd = _odd_one(executor.everyones(told))
    if odd is not None:
        raise TopologyError(
            f"rank {odd[0]} would run another model than rank 0: {odd[1]}; give every rank the "
            "same checkpoint and arguments"
        )


def _odd_one(everyones: Sequence[Sequence[str]]) -> tuple[int, str] | None:
    """The first rank that says something else than rank 0, and what; None when all say the same."""
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            return rank, differences(everyones[0], theirs)
    return None


def load_together(executor: Executor, load: Callable[[], T]) -> T:
    """What load gives, when it works on every process (collective).

    Pipeline stages read different tensors, so a checkpoint may fail one process alone, and the
    others would wait for it in their first forward.

    Raises:
        WeightError: it failed on another process; here it raises what it raises.
    """
    try:
        loaded = load()
    except Exception as error:
        executor.everyones([f"{type(error).__name__}: {error}"])
        raise
    for rank, (text,) in enumerate(executor.everyones([""])):
        if text:
            raise WeightError(f"rank {rank} could not load its part of the model: {text}")
    return loaded
