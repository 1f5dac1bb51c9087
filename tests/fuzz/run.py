"""Fuzz what is read from strangers: headers, configs, tokenizers, chat templates.

``make fuzz`` runs two minutes.

    python tests/fuzz/run.py --seconds 120            every target, a share of the time each
    python tests/fuzz/run.py --target gguf --seed 7   one target, other dice

Address space is limited to what the process has at the start and 2 GiB more, so an input that asks
for more memory is an escape (MemoryError). An escape is written into the corpus, where the
tests find it on every run from then on, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.campaign import CORPUS, Escape, campaign
from fuzz.targets import TARGETS

ROOM_BYTES = 2 << 30


def limit_memory() -> None:
    """No more than 2 GiB beyond what is mapped now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))


def keep(escape: Escape) -> Path:
    """Write an escape into the corpus."""
    path = CORPUS / escape.target / f"find-{hashlib.sha256(escape.content).hexdigest()[:12]}"
    path.write_bytes(escape.content)
    return path


def main() -> int:
    """Run the campaigns; 1 when something escaped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--target", choices=TARGETS, action="append")
    args = parser.parse_args()
    targets = args.target or list(TARGETS)
    limit_memory()
    failed = 0
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            outcome = campaign(target, args.seconds / len(targets), args.seed, Path(folder))
        print(f"{target}: {outcome.runs} inputs, {outcome.refused} refused, seed {args.seed}")
        if outcome.escape is not None:
            failed = 1
            print(f"ESCAPE, kept in {keep(outcome.escape)}:\n{outcome.escape.what}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
