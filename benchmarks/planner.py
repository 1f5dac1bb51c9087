"""How long planning takes, first time and again, and what plans save.

    python benchmarks/planner.py [--layers 100] [--tp 64]

Times are the best of five, in this process. Costs are modelled with the default link table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from archzoo.parallel import Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.rows import Batch
from archzoo.planning.facts import (
    HANDOFF,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_parallel,
)
from archzoo.planning.plan import Plan, check
from archzoo.planning.planner import Planner

WIDTH = 2 * 8192
LAYERS = {
    "pre-norm": (declare_attn(), declare_ffn()),
    "sandwich": (declare_attn(post=True), declare_ffn(post=True)),
    "parallel": (declare_parallel(declare_attn(), declare_ffn()),),
}


def best(function: Callable[[], Plan]) -> tuple[float, Plan]:
    """Milliseconds of the best of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        plan = function()
        times.append(1000 * (time.perf_counter() - start))
    return min(times), plan


def measure(axes: Axes, stages: tuple[StageFacts, ...], batch: Batch) -> str:
    """Cold and warm times, time of the check, cost beside the naive plan's."""
    cold, plan = best(lambda: Planner(axes, WIDTH).plan(stages, batch))
    planner = Planner(axes, WIDTH)
    planner.plan(stages, batch)
    warm, _ = best(lambda: planner.plan(stages, batch))
    checked, _ = best(lambda: check(plan))
    naive = planner.plan(stages, batch, mode="naive")
    return f"{cold:9.1f} {warm:9.2f} {checked:9.1f} {plan.cost / naive.cost:9.3f}"


def main() -> None:
    """Print one line for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--tp", type=int, default=64)
    arguments = parser.parse_args()
    print(f"{'configuration':34} {'cold ms':>9} {'warm ms':>9} {'check ms':>9} {'of naive':>9}")
    for attn_dp in (1, 8):
        axes = Axes.of(Topology(tp=arguments.tp, attn_dp=attn_dp))
        for style, layer in LAYERS.items():
            half = layer * (arguments.layers // 2)
            stages = (*half, HANDOFF, *half, declare_head())
            for rows in (16, 16384):
                name = f"tp {arguments.tp} dp {attn_dp} {style} {rows} rows"
                print(f"{name:34} {measure(axes, stages, Batch(rows, attn_dp * rows))}")


if __name__ == "__main__":
    main()
