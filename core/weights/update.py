"""Partial updates: which tensors may come alone, and what an update reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..parallel import ShardId
from .parameters import ParameterTable
from .plan import LoadPlan, Planner
from .remap import NameMap
from .report import WeightReport
from .routing import Claim, ClaimGroup
from .skip_rules import ArgumentRule
from .ties import Ties

UpdateMode = Literal["partial", "full"]
"""``partial`` writes what comes and leaves the rest; ``full`` wants every parameter."""


@dataclass(frozen=True)
class Partial:
    """What a partial update may do.

    Args:
        stacks: some parts of a stacked parameter may come without the others.
        head_names: checkpoint names under which a tied head may come alone, because the
            checkpoint of the last full load stored the shared matrix under no other.
    """

    stacks: bool = False
    head_names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class UpdateReport:
    """What an update touched on the local ranks. Plain data; pickles.

    Args:
        mode: as asked.
        atomic: as asked.
        tensors: checkpoint tensors that were written.
        parameters: parameters that got new values, whole or in part.
        rederived: modules whose derived state (packed layouts, joined scales) was made again.
        reports: of each local rank.
    """

    mode: UpdateMode
    atomic: bool
    tensors: tuple[str, ...]
    parameters: tuple[str, ...]
    rederived: tuple[str, ...]
    reports: tuple[WeightReport, ...]

    def __str__(self) -> str:
        """Counts, then each rank's own report."""
        head = (
            f"{self.mode} update: {len(self.tensors)} tensors into {len(self.parameters)} "
            f"parameters, derived state of {len(self.rederived)} modules made again"
        )
        ranks = [f"rank {at}: {report}" for at, report in enumerate(self.reports)]
        return "\n".join([head, *ranks])


class PartialPlanner(Planner):
    """A planner for which parameters without a tensor stay as they are.

    Args:
        table, names, ties, skips, delegates: as in Planner.
        allowed: what may come in part.

    Attributes:
        halves: stacked parameters that some parts come for.
    """

    def __init__(
        self,
        table: ParameterTable,
        names: NameMap,
        ties: Ties,
        skips: Iterable[ArgumentRule],
        delegates: Iterable[str],
        allowed: Partial,
    ) -> None:
        """See the class for the arguments."""
        super().__init__(table, names, ties, skips, delegates)
        self._allowed = allowed
        self.halves: set[str] = set()

    def _cover(self, parameter: str, seen: Mapping[ShardId, Claim], plan: LoadPlan) -> bool:
        """Nothing need come; what comes of a stacked parameter comes whole, unless asked."""
        if not seen:
            return False
        if not self._allowed.stacks:
            return super()._cover(parameter, seen, plan)
        if None in seen or not set(self._table.spec(parameter).shard_ids) - set(seen):
            return True
        self.halves.add(parameter)
        return False

    def _settle_ties(self, root: str, by_name: dict[str, ClaimGroup], plan: LoadPlan) -> str:
        """A tied head alone would change the embedding as well, which nobody asked for."""
        feeder = super()._settle_ties(root, by_name, plan)
        if feeder != root:
            for claim in by_name[feeder].claims:
                self._refuse_alone(claim.tensor.name, feeder, root, plan)
        return feeder

    def _refuse_alone(self, tensor: str, name: str, root: str, plan: LoadPlan) -> None:
        if tensor in self._allowed.head_names:
            return
        text = (
            f"{tensor} came without the tensor of {root}, which {name} is tied to: writing it would "
            f"change both; send {root} instead, or call model.untie() first"
        )
        plan.findings.tensor_fault("tie", tensor, text)
