"""Random configurations of each family against transformers: logits, chunks, greedy tokens, preflight.

    python tests/differential/run.py --configs 200          of each family
    python tests/differential/run.py --family phi3 --seed 7 one configuration, and its config.json

The exit status is 1 when anything differs, or is refused for no reason that ``refusals.py`` gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from differential.compare import outcome_of
from differential.configs import ARCHITECTURES, random_config
from differential.refusals import reason_of


def main() -> int:
    """Compare, and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--family", choices=ARCHITECTURES, action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so many")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.configs) if args.seed is None else [args.seed]
    end, failed = time.monotonic() + args.seconds, 0
    for family in args.family or ARCHITECTURES:
        equal, refused, unknown = 0, Counter[str](), Counter[str]()
        for seed in seeds:
            if time.monotonic() > end:
                print(f"{family}: stopped before seed {seed}, {args.seconds:.0f} s are over")
                failed = 1
                break
            with tempfile.TemporaryDirectory() as folder:
                outcome = outcome_of(family, seed, Path(folder))
            if args.seed is not None:
                print(json.dumps(random_config(family, seed), indent=1), outcome, sep="\n")
            if outcome.difference is not None:
                failed = 1
                print(f"{family} seed {seed} DIFFERS: {outcome.difference}")
            elif outcome.refusal is not None:
                reason = reason_of(outcome.refusal)
                if reason is None:
                    failed = 1
                    print(f"{family} seed {seed} REFUSED without a reason: {outcome.refusal}")
                refused[reason or "?"] += 1
            elif outcome.unknown is not None:
                unknown[outcome.unknown[:150]] += 1
            else:
                equal += 1
        print(
            f"{family}: {equal} equal, {refused.total()} refused, {unknown.total()} not served by "
            "transformers"
        )
        for what, counts in (("refused", refused), ("transformers", unknown)):
            for reason, count in counts.most_common():
                print(f"    {what} {count:3} x  {reason}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
