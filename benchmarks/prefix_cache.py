"""What the prefix cache saves on SmolLM2-135M, and what it costs where there is nothing to save.

    python benchmarks/prefix_cache.py [--rounds 3] [--requests 8]

One model with the cache and one without answer the same new prompts, taking turns in being first.
Numbers are medians over rounds, the ratio that of each round: above 1 is in the cache's favour.
Seconds are of the processor, all threads: they hold on a machine that others use too. Both models
must give the same tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

import archzoo
from archzoo.runtime.request import Request, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from demo.run import demo_weights  # tests/ is on the path only now

PREFIX, OWN, NEW = 512, 32, 8
"""Tokens that prompts share, tokens of each alone, new tokens."""
SLOTS = 16384
Prompts = Sequence[Sequence[int]]


def tokens(draw: random.Random, count: int) -> list[int]:
    """Ids that no template uses."""
    return [draw.randrange(100, 49000) for _ in range(count)]


def shared(draw: random.Random, requests: int) -> Prompts:
    """Prompts that begin alike."""
    prefix = tokens(draw, PREFIX)
    return [[*prefix, *tokens(draw, OWN)] for _ in range(requests)]


def apart(draw: random.Random, requests: int) -> Prompts:
    """Prompts of the same length with nothing in common."""
    return [tokens(draw, PREFIX + OWN) for _ in range(requests)]


def answer(model: archzoo.Model, prompts: Prompts) -> tuple[float, float, list[list[int]]]:
    """Seconds to all first tokens, of a decode step after that, and the tokens."""
    engine, params = model.engine, SamplingParams(NEW, ignore_eos=True)
    begin = process_time()
    requests = [engine.add(Request(prompt, params)) for prompt in prompts]
    while not all(request.num_output for request in requests):
        engine.step()
    first = process_time() - begin
    steps, begin = 0, process_time()
    while engine.has_work:
        engine.step()
        steps += 1
    return first, (process_time() - begin) / max(1, steps), [r.output_ids for r in requests]


def together(model: archzoo.Model, prompts: Prompts) -> list[float]:
    """All prompts at once."""
    return list(answer(model, prompts)[:2])


def in_turn(model: archzoo.Model, prompts: Prompts) -> list[float]:
    """One prompt after the other."""
    return [sum(part) for part in zip(*(answer(model, [p])[:2] for p in prompts), strict=True)]


CASES: dict[str, tuple[Callable[[random.Random, int], Prompts], Callable[..., list[float]]]] = {
    "shared, together": (shared, together),
    "shared, in turn": (shared, in_turn),
    "nothing shared, together": (apart, together),
    "nothing shared, in turn": (apart, in_turn),
}


def main() -> int:
    """Measure every case, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8)
    options = parser.parse_args()
    models = {
        on: archzoo.load(demo_weights(), dtype="float32", kv_slots=SLOTS, prefix_cache=on)
        for on in (True, False)
    }
    draw = random.Random(0)
    warm = shared(draw, 2)
    if answer(models[True], warm)[2] != answer(models[False], warm)[2]:
        print("the cache changes tokens")
        return 1
    print(
        f"{'case':28} {'first s':>8} {'without':>8} {'ratio':>6} {'step ms':>8} {'without':>8} {'ratio':>6}"
    )
    for name, (make, run) in CASES.items():
        found: dict[bool, list[list[float]]] = {True: [], False: []}
        for number in range(options.rounds):
            prompts = make(draw, options.requests)
            for on in (True, False) if number % 2 else (False, True):
                found[on].append(run(models[on], prompts))
        ours, plain = (list(zip(*found[on], strict=True)) for on in (True, False))
        print(f"{name:28} {row(ours[0], plain[0], 1)} {row(ours[1], plain[1], 1000)}", flush=True)
    stats = models[True].cache_stats
    print(f"hit rate {stats.hit_rate:.2f}, evicted {stats.evicted_tokens} of {SLOTS} slots")
    return 0


def row(ours: Sequence[float], plain: Sequence[float], unit: int) -> str:
    """Medians of both, and of the ratios."""
    ratio = statistics.median(b / a for a, b in zip(ours, plain, strict=True))
    a, b = unit * statistics.median(ours), unit * statistics.median(plain)
    return f"{a:8.2f} {b:8.2f} {ratio:6.2f}"


if __name__ == "__main__":
    sys.exit(main())
