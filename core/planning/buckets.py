"""Which plan a batch gets, without a search: by its bucket."""

from __future__ import annotations

from collections.abc import Sequence

from ..parallel.placement import Term
from ..parallel.rows import Batch, GroupRows, RowMap
from .facts import StageFacts
from .plan import Mode, Plan, check_mode, digest
from .planner import Planner

_PROBES = (1, 32, 1024, 16384)
"""Rows of an attention group whose plans stand for all in a digest; facts and costs are whole."""


class PlanBook:
    """Plans of one stack, made for the upper end of each bucket.

    Buckets come from the row counts of all attention groups, which every rank knows. A rank's own
    count would give ranks different plans, and a hang.

    Args:
        planner: makes them.
        stages, start, mode: as in Planner.plan.

    Raises:
        BoundaryError: no such mode.

    Attributes:
        axes: of the planner.
    """

    def __init__(
        self,
        planner: Planner,
        stages: Sequence[StageFacts],
        *,
        start: Term | None = None,
        mode: Mode = "cheapest",
    ) -> None:
        check_mode(mode)
        self._planner, self.axes = planner, planner.axes
        self.stages = tuple(stages)
        self.mode: Mode = mode
        self.start = start or Term(self.axes.attn_depth, self.axes.count)
        self._parts = self.axes.size(self.axes.attn_depth, self.axes.count)
        self._plans: dict[Batch, Plan] = {}

    def plan(self, counts: tuple[int, ...], *, padded: bool = False) -> Plan:
        """The plan for a batch.

        Args:
            counts: rows of every attention group.
            padded: all groups must hold equally many rows (graph capture); else the cheaper of
                padded and ragged.
        """
        plan = self._of(Batch.bucket(counts, parts=self._parts))
        if padded or len(set(counts)) == 1:
            return plan
        ragged = self._of(Batch.bucket(counts, ragged=True, parts=self._parts))
        return min(plan, ragged, key=lambda one: one.cost)

    def rows(self, counts: tuple[int, ...], selected: tuple[int, ...]) -> GroupRows:
        """How a batch is best laid out: padding, where groups or slices must be equal.

        Args:
            counts: rows of every attention group that carry a token.
            selected: rows of every group that leave the model.
        """
        plan = self.plan(counts)
        ragged = plan.rules.ragged
        held = RowMap.of(self.axes, counts, ragged=ragged, sliced=plan.sliced).held
        return GroupRows(counts, held, selected, ragged)

    def of_rows(self, rows: GroupRows) -> Plan:
        """The plan for rows that are laid out already, by ``rows`` or by somebody else."""
        parts = self._parts
        cuts = not any(held % parts for held in rows.held)
        return self._of(Batch.bucket(rows.held, ragged=rows.ragged, cuts=cuts, parts=parts))

    def of_stages(self, stages: Sequence[StageFacts]) -> PlanBook:
        """Plans of another stack, made in the same way."""
        return PlanBook(self._planner, stages, start=self.start, mode=self.mode)

    @property
    def digest(self) -> str:
        """Equal on ranks that will do the same for batches of every size."""
        groups = self.axes.size(0, self.axes.attn_depth)
        return digest([self.plan((rows,) * groups) for rows in _PROBES])

    def in_mode(self, mode: Mode) -> PlanBook:
        """Plans of the same stack, chosen in another way."""
        return PlanBook(self._planner, self.stages, start=self.start, mode=mode)

    def _of(self, batch: Batch) -> Plan:
        if batch not in self._plans:
            self._plans[batch] = self._planner.plan(
                self.stages, batch, start=self.start, mode=self.mode
            )
        return self._plans[batch]
