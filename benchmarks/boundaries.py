"""What collectives between stages cost a token, planned and naive, predicted and recorded.

    python benchmarks/boundaries.py [--tp 8] [--attn-dp 1,2,4]

Predicted: plans of a model in the shape of Llama 3 70B, built on the meta device, in bfloat16, with
the default table of link costs, which is not measured. Recorded: as many Llama layers of 64
features run on simulated ranks, with rates and memory slowed down by the ratio of the widths, so
that each plan is chosen for the same reasons; every collective is recorded. Bytes for each feature
must be equal, rank by rank and collective by collective, or the script fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import archzoo
from archzoo.cli.boundary_table import sections
from archzoo.forward import AttentionSpec, ForwardBatch
from archzoo.models import DecoderBase
from archzoo.parallel.in_process import CollectiveRecord, InProcessWorld
from archzoo.parallel.links import CUDA, MICROSECOND, CostTable, over_link
from archzoo.parallel.rows import GroupRows
from archzoo.planning.buckets import PlanBook
from archzoo.planning.plan import Mode, Plan

HIDDEN, SMALL = 8192, 64
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
NARROW = LLAMA_70B | {
    "hidden_size": SMALL,
    "intermediate_size": SMALL,
    "head_dim": 2,
    "vocab_size": 128,
}
BATCHES = (("decode", 8), ("decode", 64), ("decode", 256), ("prefill", 2048), ("prefill", 16384))
MODES: tuple[Mode, ...] = ("naive", "cheapest")


class NoAttention:
    """Gives queries back: no collective depends on what attention computes."""

    name = "none"
    padded_rows: Literal["zero", "undefined"] = "undefined"

    def bind(self, specs: Sequence[AttentionSpec]) -> Mapping[int, Any]:
        """No handle is needed."""
        return {}

    def plan(self, batch: ForwardBatch) -> None:
        """Nothing to plan."""

    def forward(self, q: Tensor, *_rest: Any, **_options: Any) -> Tensor:
        """(T, N, H), as they came."""
        return q


class Simulation:
    """The narrow model on all ranks of one topology."""

    def __init__(self, topology: archzoo.Topology, mode: Mode) -> None:
        self.topology, self.backend = topology, NoAttention()
        self.world = InProcessWorld(topology.world_size)
        self.modules = [self._module(rank, mode) for rank in range(topology.world_size)]

    def _module(self, rank: int, mode: Mode) -> DecoderBase:
        ctx = archzoo.BuildContext.of(
            self.topology.at(rank),
            communicators=self.world.factory(rank),
            dtype=torch.bfloat16,
            plan=mode,
            costs=slower(CUDA, HIDDEN // SMALL),
        )
        module = archzoo.build(NARROW, ctx)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        for layer in module.modules():
            method = getattr(layer, "quant_method", None)
            if method is not None:
                method.process_weights_after_loading(layer)
        return module

    def record(self, rows: GroupRows) -> list[CollectiveRecord]:
        """Every collective of one forward of the layers."""

        def forward(rank: int) -> None:
            held = rows.held[self.topology.at(rank).attn_dp_rank]
            batch = ForwardBatch(self.backend, parallel=rows)
            ids = torch.zeros(held, dtype=torch.int64)
            with torch.inference_mode():
                embedded = torch.zeros(held, SMALL, dtype=torch.bfloat16)
                self.modules[rank].model(None, ids, batch, input_embeds=embedded)

        with self.world.record() as log:
            self.world.run(forward)
        return log


def slower(table: CostTable, ratio: int) -> CostTable:
    """A machine on which rows narrower by the ratio take as long."""
    link = table.link._replace(rate=table.link.rate // ratio)
    return replace(table, link=link, memory=table.memory // ratio)


def book_of(topology: archzoo.Topology, mode: Mode) -> PlanBook:
    """Plans of the wide model."""
    ctx = archzoo.BuildContext.of(
        topology, dtype=torch.bfloat16, device="meta", plan=mode, costs=CUDA
    )
    return archzoo.build(LLAMA_70B, ctx).model.stack.book


def predicted(plan: Plan) -> list[tuple[str, str, int]]:
    """Kind, group and bytes of a rank's collectives, in order."""
    shown: dict[int, list[tuple[str, str, int]]] = {}
    for section in sections(plan, [None] * len(plan.stages)):
        for at in section.at:
            shown[at] = [
                (line.step.split()[0], line.group, line.nbytes)
                for line in section.lines
                if line.group
            ]
    return [each for at in sorted(shown) for each in shown[at]]


def check(plan: Plan, log: Sequence[CollectiveRecord], ranks: int) -> int:
    """Bytes that a rank brought to all collectives, scaled to the wide model.

    Raises:
        SystemExit: a rank brought something else to some collective than predicted.
    """
    ratio, want = HIDDEN // SMALL, predicted(plan)
    for rank in range(ranks):
        got = [(one.kind, one.group, one.nbytes * ratio) for one in log if one.rank == rank]
        if got != want:
            pairs = zip_longest(got, want)
            first = next(pair for pair in pairs if pair[0] != pair[1])
            raise SystemExit(f"rank {rank} recorded {first[0]}, predicted is {first[1]}")
    return sum(nbytes for _, _, nbytes in got)


class Figures(NamedTuple):
    """Of one plan, for each token: microseconds, and KiB of one rank."""

    us: float
    predicted: float
    recorded: float
    link: float

    @staticmethod
    def of(book: PlanBook, simulation: Simulation, counts: tuple[int, ...]) -> Figures:
        """Plan, simulate, compare."""
        topology, tokens = simulation.topology, sum(counts)
        sizes = {name: len(topology.ranks_of(name)) for name in ("tp", "attn_tp", "attn_dp")}
        rows = book.rows(counts, counts)
        plan = book.of_rows(rows)
        met = predicted(plan)
        recorded = check(plan, simulation.record(rows), topology.tp)
        link = sum(over_link(kind, sizes[group], nbytes) for kind, group, nbytes in met)
        kib = [each / 1024 / tokens for each in (sum(one[2] for one in met), recorded, link)]
        return Figures(plan.cost / MICROSECOND / tokens, *kib)


def lines(tp: int, attn_dp: int) -> Iterator[str]:
    """Rows of the table for one topology."""
    topology = archzoo.Topology(tp=tp, attn_dp=attn_dp)
    sides = [(book_of(topology, mode), Simulation(topology, mode)) for mode in MODES]
    for kind, total in BATCHES:
        counts = (total // attn_dp,) * attn_dp
        naive, planned = (Figures.of(*side, counts) for side in sides)
        pairs = [
            f"{one:,.{digits}f} / {two:,.{digits}f}"
            for one, two, digits in zip(naive, planned, (2, 0, 0, 0), strict=True)
        ]
        cells = (f"{attn_dp}", kind, f"{total:,}", *pairs, f"{naive.us / planned.us:.2f}")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--attn-dp", default="1,2,4")
    arguments = parser.parse_args()
    print(
        "| attn_dp | step | rows | µs | KiB predicted | KiB recorded | KiB over its link | speed |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for attn_dp in map(int, arguments.attn_dp.split(",")):
        for line in lines(arguments.tp, attn_dp):
            print(line, flush=True)


if __name__ == "__main__":
    main()
