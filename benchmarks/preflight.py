"""How long preflight of large checkpoints takes, from the start of the process, and its peak memory.

    python benchmarks/preflight.py [--rounds 5]

Llama 3.1 405B at tp 8 x pp 4, and a model of 671B with 256 experts a layer at tp 8 x pp 4 x ep 8.

Headers are generated (``benchmarks/headers.py``). Each round is a fresh process with bytecode compiled;
time is from before it starts to the report, so importing torch is in it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headers import FILES_405B, FILES_671B, LLAMA_405B, MOE_671B, write_headers

TP, PP = 8, 4
_CHILD = """
import sys, time
import archzoo
from archzoo.cli.footprint import peak_bytes
folder, tp, pp, ep, started = sys.argv[1:]
preflight = archzoo.preflight
imported = time.time()
report = preflight(folder, tp=int(tp), pp=int(pp), ep=int(ep))
assert report.ok and len(report.ranks) == int(tp) * int(pp), str(report)
print(time.time() - float(started), time.time() - imported, time.process_time(), peak_bytes())
"""


def measure(folder: str, tp: int, pp: int, ep: int) -> tuple[float, ...]:
    """Seconds from the start, of them in preflight, of processor; peak bytes."""
    arguments = (folder, str(tp), str(pp), str(ep), repr(time.time()))
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return tuple(map(float, done.stdout.split()))


def show(name: str, config: Mapping[str, Any], files: int, ep: int, rounds: int) -> None:
    """Measure one checkpoint and print medians."""
    with tempfile.TemporaryDirectory() as folder:
        write_headers(Path(folder), config, files)
        measure(folder, 1, 1, 1)  # compiles bytecode, warms the page cache
        found = [measure(folder, TP, PP, ep) for _ in range(rounds)]
    total, own, processor, peak = map(statistics.median, zip(*found, strict=True))
    print(f"{name}, {files} headers, tp {TP} x pp {PP} x ep {ep}")
    print(f"from process start  {total:6.2f} s   (target 5)")
    print(f"  without imports   {own:6.2f} s")
    print(f"  of processor      {processor:6.2f} s")
    print(f"peak memory         {peak / 2**20:6.0f} MiB (target 1024)")


def main() -> None:
    """Print medians of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    show("Llama 3.1 405B", LLAMA_405B, FILES_405B, 1, rounds)
    show("671B, 256 experts", MOE_671B, FILES_671B, 8, rounds)


if __name__ == "__main__":
    main()
