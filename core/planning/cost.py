"""What a boundary's steps cost, and what fused operations save."""

from __future__ import annotations

from dataclasses import dataclass

from ..parallel.pricing import Pricing, Traffic
from ..parallel.rows import Sizes
from .facts import AUX, StageFacts
from .steps import State, Step


@dataclass(frozen=True)
class Provider:
    """A fused operation: a shortcut for some steps on one term, which are its unfused twin.

    Args:
        name: under which the executor may know a faster way; it runs the twin otherwise.
        twin: ops of the steps; each starts where the one before ended.
        kernels, passes: starts of operations, and readings or writings of the rows, that it saves.
        most_bytes: of the rows it can handle; None for any.
    """

    name: str
    twin: tuple[str, ...]
    kernels: int
    passes: int
    most_bytes: int | None = None


ADD_NORM = Provider("add_norm", ("merge", "read"), kernels=1, passes=1)
"""The residual addition joined with the norm that reads the sum."""


@dataclass(frozen=True)
class Costs:
    """Costs for batches of one size.

    Args:
        pricing: of the machine, with axes and layout.
        sizes: rows at every depth.
        providers: fused operations there are.
    """

    pricing: Pricing
    sizes: Sizes
    providers: tuple[Provider, ...]

    def rows(self, state: State, on: tuple[str, ...], op: str = "") -> tuple[int, ...]:
        """At every depth, rows of the stream or of these readers."""
        selected = op == "select" or (state.selected and on != (AUX,))
        return self.sizes.selected if selected else self.sizes.rows

    def traffic(self, state: State, step: Step) -> Traffic | None:
        """What a rank brings to the step's collective; None for local steps."""
        op, on, src, dst = step
        return self.pricing.traffic(op, src, dst, self.rows(state, on))

    def step(self, stage: StageFacts, state: State, step: Step) -> int:
        """Femtoseconds of a step."""
        op, on, src, dst = step
        cost, rows = 0, self.rows(state, on, op)
        if op == "read" and stage.normalises:
            norms = 1 if stage.shares_rows else len(stage.branches)
            cost = self.pricing.touch(2 * norms * rows[src.split])
        return cost + self.pricing.change(op, src, dst, rows)

    def saved(self, stage: StageFacts, name: str, steps: tuple[Step, ...]) -> int | None:
        """Femtoseconds that a provider saves by doing these steps at once; None if it cannot."""
        provider = {one.name: one for one in self.providers}.get(name)
        links = zip(steps, steps[1:], strict=False)
        if provider is None or tuple(step.op for step in steps) != provider.twin:
            return None
        nbytes = self.sizes.rows[steps[-1].src.split] * self.pricing.width
        fits = (
            not any(step.on for step in steps)
            and all(one.dst == two.src for one, two in links)
            and (stage.normalises or "read" not in provider.twin)
            and (provider.most_bytes is None or nbytes <= provider.most_bytes)
        )
        if not fits:
            return None
        table = self.pricing.table
        return provider.kernels * table.kernel + table.moved(provider.passes * nbytes)

    def sent(self, state: State) -> Traffic:
        """What a rank sends to the next pipeline stage."""
        return Traffic("send", "pp", self.sizes.rows[state.stream[0].split] * self.pricing.width)

    def enter(self, stage: StageFacts, state: State) -> int:
        """Reading and writing the rows that the stage computes on, or sending them on."""
        table, rows = self.pricing.table, self.rows(state, ())
        if stage.kind == "handoff":
            return table.meeting("send", ("pp",), 2, self.sent(state).nbytes)
        depths = (state.rows or ())[: len(stage.branches)]
        return sum(table.moved(2 * rows[depth] * self.pricing.width) for depth in depths)
