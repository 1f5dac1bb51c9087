"""Experts of one layer: sorted blocks beside expert by expert, and beside ``transformers``' block.

    python benchmarks/experts.py [--experts 64] [--hidden 1024] [--width 512] [--top-k 8]

One process, the same weights and rows for all; contenders take turns, medians of the rounds.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from archzoo.context import BuildContext
from archzoo.layers.moe import Experts, TopKRouter, reference_experts

ROWS = (1, 8, 64, 512)
DTYPES = (torch.float32, torch.bfloat16)
IMPLEMENTATIONS = ("eager", "grouped_mm")
"""Of ``transformers``: its loop over experts, and what it takes by default where it can."""

Contender = Callable[[Tensor], Tensor]


def contenders(arguments: argparse.Namespace, dtype: torch.dtype) -> dict[str, Contender]:
    """One layer in every form, router included."""
    experts, hidden, width, top_k = (
        getattr(arguments, name) for name in ("experts", "hidden", "width", "top_k")
    )
    found: dict[str, Contender] = {}
    ctx = BuildContext.of(dtype=dtype)
    router = TopKRouter(hidden, experts, top_k, True, ctx=ctx, prefix="gate")
    ours = Experts(experts, hidden, width, ctx=ctx, prefix="experts")
    linears = (router, ours.gate_up_proj, ours.down_proj)
    gate, gate_up, down = (layer.weight.data.normal_(0, 0.05) for layer in linears)
    for implementation in IMPLEMENTATIONS:
        block = Qwen3MoeSparseMoeBlock(
            Qwen3MoeConfig(
                num_experts=experts,
                hidden_size=hidden,
                moe_intermediate_size=width,
                num_experts_per_tok=top_k,
                norm_topk_prob=True,
                experts_implementation=implementation,
            )
        )
        block.gate.weight.data = gate
        block.experts.gate_up_proj.data, block.experts.down_proj.data = gate_up, down
        found[f"transformers, {implementation}"] = lambda x, block=block: block(x[None])[0]
    for layer in linears:
        layer.quant_method.process_weights_after_loading(layer)
    found["expert by expert"] = lambda x: reference_experts(x, router.route(x), gate_up, down)
    found["sorted blocks"] = lambda x: ours(x, router.route(x))
    return found


def measure(each: dict[str, Contender], x: Tensor, rounds: int) -> dict[str, float]:
    """Milliseconds of each, medians over rounds in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in each}
    names = list(each)
    for at in range(rounds + 1):
        for name in names[at % len(names) :] + names[: at % len(names)]:
            begin = time.perf_counter()
            each[name](x)
            times[name].append(1000 * (time.perf_counter() - begin))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    """Print one line for each dtype and number of rows: ms, and ratios to sorted blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("experts", 64), ("hidden", 1024), ("width", 512), ("top-k", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {arguments}")
    with torch.inference_mode():
        for dtype in DTYPES:
            each = contenders(arguments, dtype)
            for rows in ROWS:
                x = torch.randn(rows, arguments.hidden).to(dtype)
                wanted = each["expert by expert"](x).float()
                for name, contender in each.items():
                    # Of rows: in bfloat16 a tie may give a row of theirs another expert.
                    error = (contender(x).float() - wanted).abs().median() / wanted.abs().median()
                    assert error < (1e-4 if dtype is torch.float32 else 2e-2), (name, error)
                taken = measure(each, x, arguments.rounds)
                ours = taken["sorted blocks"]
                told = [f"{name} {ms:.2f} ({ms / ours:.2f})" for name, ms in taken.items()]
                print(f"{str(dtype).removeprefix('torch.')} {rows} rows: {', '.join(told)}")


if __name__ == "__main__":
    main()
