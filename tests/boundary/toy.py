"""Toy stacks: what a plan computes on simulated ranks beside what one rank computes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archzoo.boundary.execute import Crossing, Held, Selection, Values
from archzoo.parallel import Group, InProcessWorld, Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.in_process import CollectiveRecord
from archzoo.parallel.moving import RowMover
from archzoo.parallel.placement import Rules, Term
from archzoo.parallel.pricing import Traffic
from archzoo.parallel.rows import RowMap, Sizes
from archzoo.planning.cost import Costs
from archzoo.planning.facts import AUX, Branch, StageFacts
from archzoo.planning.plan import Move, follow, replay
from archzoo.planning.steps import State, Stream, apply, finish, outputs

D = 24
Moves = Sequence[tuple[Move, ...]]


def three(attn_depth: int) -> Axes:
    """2 x 2 x 2 ranks with a group for every run of axes."""
    runs = [(a, b, f"g{a}{b}") for a in range(3) for b in range(a + 1, 4)]
    return Axes(("attn_dp", "mid", "attn_tp"), (2, 2, 2), attn_depth, tuple(runs))


GRIDS = {
    "one": Axes.of(Topology()),
    "tp2": Axes.of(Topology(tp=2)),
    "tp3": Axes.of(Topology(tp=3)),
    "dp2": Axes.of(Topology(tp=2, attn_dp=2)),
    "tp4dp2": Axes.of(Topology(tp=4, attn_dp=2)),
    "tp4dp2ep2": Axes.of(Topology(tp=4, attn_dp=2, ep=2)),
    "tp8dp4": Axes.of(Topology(tp=8, attn_dp=4)),
    "tp6dp3": Axes.of(Topology(tp=6, attn_dp=3)),
    "deep1": three(1),
    "deep2": three(2),
}


@functools.cache
def world_of(size: int) -> InProcessWorld:
    return InProcessWorld(size)


@functools.cache
def groups_of(axes: Axes) -> list[dict[str, Group]]:
    """For every rank its groups by name."""
    ranks = range(axes.size(0, axes.count))
    found: list[dict[str, Group]] = []
    for rank in ranks:
        mine, groups = axes.digits(rank), {}
        for start, stop, name in axes.groups:
            members = tuple(
                other
                for other in ranks
                if all(
                    a == b or start <= axis < stop
                    for axis, (a, b) in enumerate(zip(axes.digits(other), mine, strict=True))
                )
            )
            comm = world_of(len(ranks)).factory(rank)(name, members, members.index(rank))
            groups[name] = Group(name, members, members.index(rank), comm)
        found.append(groups)
    return found


class ToyNorm:
    """Row-local and not linear."""

    def __init__(self, seed: int) -> None:
        self.weight = 1 + torch.rand(D, dtype=torch.float64, generator=generator(seed))

    def __call__(self, x: Tensor, residual: Tensor | None = None):  # type: ignore[no-untyped-def]  # two shapes of result
        total = x if residual is None else x + residual
        y = total / (total.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * self.weight
        return y if residual is None else (y, total)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def weight_of(seed: int) -> Tensor:
    return torch.randn(D, D, dtype=torch.float64, generator=generator(seed)) / D**0.5


@functools.cache
def norm_of(seed: int) -> ToyNorm:
    return ToyNorm(seed)


@dataclass(frozen=True)
class Toy:
    """A stack of stages with weights, and a batch for it."""

    stages: tuple[StageFacts, ...]
    counts: tuple[int, ...]
    seed: int = 0

    @functools.cached_property
    def x(self) -> list[Tensor]:
        """Rows of every attention group."""
        gen = generator(self.seed)
        return [torch.randn(n, D, dtype=torch.float64, generator=gen) for n in self.counts]

    @functools.cached_property
    def picked(self) -> list[Tensor]:
        """Every other row, the last one first."""
        return [torch.arange(n - 1, -1, -2) for n in self.counts]

    def weight(self, index: int, branch: int) -> Tensor:
        return weight_of(7 + 100 * index + branch)

    def norm(self, index: int, branch: int) -> ToyNorm:
        shared = self.stages[index].shared_norm
        return norm_of(1000 + 100 * index + (0 if shared else branch))

    def post(self, index: int, branch: int) -> ToyNorm:
        return norm_of(2000 + 100 * index + branch)

    # -- one rank ---------------------------------------------------------------------------

    def oracle(self) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Per attention group: the head's rows or the final stream; and all captured ones."""
        finals, captured = [], []
        for x, picked in zip(self.x, self.picked, strict=True):
            final, aux = self._oracle(x, picked)
            finals.append(final)
            captured.append(aux)
        return finals, captured

    def _oracle(self, x: Tensor, picked: Tensor) -> tuple[Tensor, list[Tensor]]:
        aux = []
        for index, stage in enumerate(self.stages):
            if stage.kind == "handoff":
                continue
            first = self.norm(index, 0)(x) if stage.read in ("norm", "replace") else x
            x = first if stage.read == "replace" else x
            if stage.capture:
                aux.append(x)
            if stage.kind == "head":
                return (first[picked] if stage.selects else first), aux
            total = torch.zeros_like(x) if stage.read == "take" else x
            for number, branch in enumerate(stage.branches):
                h = self.norm(index, number)(x) if stage.read == "norm" else x
                y = h @ self.weight(index, number)
                y = y.cumsum(0) if mixes(branch) else y
                total = total + (self.post(index, number)(y) if branch.post else y)
            x = total
        return x, aux

    # -- simulated ranks --------------------------------------------------------------------

    def simulate(
        self, rules: Rules, moves: Moves, start: Term, sliced: bool = True
    ) -> list[CollectiveRecord]:
        """Run the moves on all ranks; fails unless every rank gets what the oracle gets."""
        rows, selected = self.rows(rules, sliced)
        finals, captured = self.oracle()
        world = world_of(rules.axes.size(0, rules.axes.count))

        def run(rank: int) -> None:
            group = rank_group(rules.axes, rank)
            mover = RowMover(rules, rows, rank, groups_of(rules.axes)[rank].__getitem__)
            selection = Selection(replace(mover, rows=selected), self.picked[group])
            final, depth, aux = self._forward(mover, selection, moves, start)
            head = self.stages[-1].selects
            same(final, finals, selected if head else rows, rank, depth)
            for number, value in enumerate(aux):
                want = [each[number] for each in captured]
                same(value, want, rows, rank, rules.axes.attn_depth)

        with world.record() as log:
            world.run(run)
        return log

    def rows(self, rules: Rules, sliced: bool) -> tuple[RowMap, RowMap]:
        """Of the batch and of the rows that its head keeps."""
        kept = tuple(len(picked) for picked in self.picked)
        return (
            RowMap.of(rules.axes, self.counts, ragged=rules.ragged, sliced=sliced),
            RowMap.of(rules.axes, kept, ragged=rules.ragged),
        )

    def compare(
        self, log: list[CollectiveRecord], costs: Costs, start: Stream, moves: Moves, sliced: bool
    ) -> None:
        """Every rank brought to every collective what the costs are counted from."""
        rules = costs.pricing.rules
        for rank in range(rules.axes.size(0, rules.axes.count)):
            sizes = Sizes(*(rows.sizes(rank) for rows in self.rows(rules, sliced)))
            predicted = traffic(replace(costs, sizes=sizes), self.stages, start, moves)
            assert [record[:3] for record in log if record.rank == rank] == predicted

    def _forward(
        self, mover: RowMover, selection: Selection, moves: Moves, start: Term
    ) -> tuple[Tensor, int, list[Tensor]]:
        rules = mover.rules
        values, aux = Values(), []
        values.put(start, Held(self._entry(mover, start)))
        stream: Stream = (start,)
        for index, (stage, made) in enumerate(zip(self.stages, moves, strict=True)):
            state = State(stream)
            for move in made:
                for step in move.steps:
                    state = apply(rules, stage, state, step)
            stream = finish(rules, stage, state)
            norms = {b.name: self.norm(index, number) for number, b in enumerate(stage.branches)}
            got = Crossing(stage, values, mover, norms, selection).run(made)
            if stage.capture:
                aux.append(got[AUX])
            if stage.kind == "head":
                assert state.rows is not None
                return got["head"], state.rows[0], aux
            for number, term in enumerate(outputs(rules.axes, stage, state)):
                branch = stage.branches[number]
                y = self._compute(mover, index, number, got[branch.name], term.split)
                values.put(term, Held(y, self.post(index, number) if branch.post else None))
            assert values.terms == stream
        (last,) = stream
        assert last.debt == rules.axes.count
        return values.take(last).value, last.split, aux

    def _entry(self, mover: RowMover, start: Term) -> Tensor:
        """This rank's rows with NaN where nothing is, or its part of a partial sum."""
        full = padded(self.x, mover.rows)
        mine = full[slice_of(mover.rows.span(mover.tp_rank, start.split))]
        if start.debt < mover.rules.axes.count:
            index = mover.rules.axes.digits(mover.tp_rank)[start.debt :]
            mine = mine * (2.0 if not any(index) else -1.0 / (share(mover, start.debt) - 1))
        return mine

    def _compute(self, mover: RowMover, index: int, number: int, h: Tensor, depth: int) -> Tensor:
        """One branch on one rank: a shard of the sum; rows that are not real become NaN."""
        axes, rank = mover.rules.axes, mover.tp_rank
        branch, weight = self.stages[index].branches[number], self.weight(index, number)
        debt = axes.debt(branch.group)
        size, place = axes.size(debt, axes.count), rank % axes.size(debt, axes.count)
        assert D % size == 0
        mine = slice(place * D // size, (place + 1) * D // size)
        y = torch.full_like(h, torch.nan)
        for real in mover.rows.real(rank, depth):
            part = h[real][:, mine] @ weight[mine]
            y[real] = part.cumsum(0) if mixes(branch) else part
        return y


def traffic(
    costs: Costs, stages: Sequence[StageFacts], start: Stream, moves: Moves
) -> list[Traffic]:
    """What a rank brings to every collective, in order."""
    found, stream = [], start
    for stage, made in zip(stages, moves, strict=True):
        found += [met for met, _, _ in replay(costs, stage, State(stream), made) if met]
        stream = follow(costs, stage, stream, made).stream
    return found


def mixes(branch: Branch) -> bool:
    """Attention: rows of one group see the rows before them."""
    return branch.rows == ("attn",)


def share(mover: RowMover, debt: int) -> int:
    return mover.rules.axes.size(debt, mover.rules.axes.count)


def rank_group(axes: Axes, rank: int) -> int:
    return rank // axes.size(axes.attn_depth, axes.count)


def slice_of(rows: range) -> slice:
    return slice(rows.start, rows.stop)


def padded(values: list[Tensor], rows: RowMap) -> Tensor:
    """All groups' rows with NaN as padding."""
    parts = []
    for value, held in zip(values, rows.held, strict=True):
        parts += [value, torch.full((held - len(value), D), torch.nan, dtype=torch.float64)]
    return torch.cat(parts)


def same(got: Tensor, want: list[Tensor], rows: RowMap, rank: int, depth: int) -> None:
    expected = padded(want, rows)[slice_of(rows.span(rank, depth))]
    assert got.shape == expected.shape
    real = ~expected.isnan().any(-1)
    torch.testing.assert_close(got[real], expected[real], rtol=1e-9, atol=1e-9)
