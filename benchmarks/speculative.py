"""What a draft is worth on SmolLM2-135M: tokens for each target forward, and time beside plain greedy.

    python benchmarks/speculative.py [--rounds 3] [--tokens 64] [--dtype float32]

Three drafts: the model itself, whose guesses are always right and cost as much as the model; its
first layers alone under its own norm and head, which anybody has for free; an EAGLE-3 head of random
weights, whose guesses are always wrong. Trained heads lie between the last and the first. Rounds are
interleaved, medians are shown; time is the processor's, which other work on the machine hardly
moves. The tokens must be those of plain greedy decoding, or the script
fails (in bfloat16 a row computed alone and one computed among others round differently, so near-ties
may fall otherwise: the share of equal tokens is shown).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

import archzoo
from archzoo.cli.reference import reference_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import eagle3  # tests/ is on the path only now
from demo.run import demo_weights

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at")
FIRST_LAYERS = 6


class Round(NamedTuple):
    """One way of generating, once.

    Args:
        seconds: of the processor, for all prompts, one after the other.
        tokens: that came out.
        forwards: of the target.
        accepted: share of proposed tokens.
    """

    seconds: float
    tokens: list[list[int]]
    forwards: int
    accepted: float


def early_exit(folder: Path, dtype: torch.dtype) -> Path:
    """The first layers of SmolLM2 under its own norm and head, as a checkpoint."""
    model = reference_model(demo_weights(), dtype)
    model.config.num_hidden_layers = FIRST_LAYERS
    layers = model.model.layers
    del layers[FIRST_LAYERS:]
    model.save_pretrained(folder)
    return folder


def random_head(folder: Path, target: archzoo.Model) -> Path:
    """An EAGLE-3 head that knows half of the vocabulary and nothing else."""
    sizes = {
        "vocab_size": target.config.vocab_size,
        "draft_vocab_size": target.config.vocab_size // 2,
        "hidden_size": target.config.hidden_size,
        "intermediate_size": target.config.intermediate_size,
        "num_attention_heads": target.config.num_attention_heads,
        "max_position_embeddings": 2048,
    }
    config = eagle3.SIZES | sizes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(eagle3.weights(config, embedding=False), folder / "model.safetensors")
    return folder


def once(
    model: archzoo.Model, prompts: Sequence[Sequence[int]], count: int, options: Mapping[str, Any]
) -> Round:
    """Each prompt alone, as a chat with one user has it."""
    begin = process_time()
    results = [model.generate(ids, count, ignore_eos=True, **options) for ids in prompts]
    seconds = process_time() - begin
    reports = [each.speculation for each in results if each.speculation is not None]
    proposed, accepted = (
        sum(getattr(r, name) for r in reports) for name in ("proposed", "accepted")
    )
    forwards = sum(r.target_forwards for r in reports) or count * len(prompts)
    return Round(seconds, [r.token_ids for r in results], forwards, accepted / max(1, proposed))


def main() -> int:
    """Measure, show a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        model = archzoo.load(demo_weights(), dtype=dtype)
        small = archzoo.load(early_exit(Path(folder, "early"), dtype), dtype=dtype)
        head = archzoo.load(random_head(Path(folder, "head"), model), dtype=dtype, target=model)
    prompts = [model.encode(text) for text in PROMPTS]
    ways: dict[str, dict[str, Any]] = {"plain": {}}
    drafts = {"itself": model, f"first {FIRST_LAYERS} layers": small, "random head": head}
    for name, draft in drafts.items():
        for count in (2, 4):
            ways[f"{name}, {count}"] = {"draft": draft, "draft_tokens": count}
    once(model, prompts, 2, {})
    rounds: dict[str, list[Round]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            rounds[name].append(once(model, prompts, options.tokens, way))
    return show(rounds, options.tokens * len(prompts), options.dtype == "float32")


def show(rounds: Mapping[str, Sequence[Round]], tokens: int, strict: bool) -> int:
    """A line for each way; fails where tokens differ and must not."""
    plain = rounds["plain"]
    print(
        "| draft, tokens proposed | accepted | tokens/target forward | time/plain | equal tokens |"
    )
    print("|---|---|---|---|---|")
    same = True
    for name, found in rounds.items():
        times = [a.seconds / b.seconds for a, b in zip(found, plain, strict=True)]
        pairs = zip(found[0].tokens, plain[0].tokens, strict=True)
        equal = sum(one == two for a, b in pairs for one, two in zip(a, b, strict=True)) / tokens
        same = same and equal == 1
        print(
            f"| {name} | {found[0].accepted:.0%} | {tokens / found[0].forwards:.2f} | "
            f"{statistics.median(times):.2f} | {equal:.1%} |"
        )
    return 1 if strict and not same else 0


if __name__ == "__main__":
    sys.exit(main())
