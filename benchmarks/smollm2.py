"""Speed beside transformers on SmolLM2-135M: ``archzoo bench`` on a safetensors copy.

Medians over interleaved rounds in one process; loading is measured with both reading the same
files. Results of earlier runs, with the machine, are in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from archzoo.cli.reference import reference_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from demo.run import demo_weights  # tests/ is on the path only now


def bench_copies(gguf: Path, name: str, rounds: int) -> int:
    """``archzoo bench`` on Hugging Face copies of a GGUF file, in both dtypes; its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("bfloat16", "float32"):
            target = Path(folder, f"{name}-{dtype}")
            reference_model(gguf, getattr(torch, dtype)).save_pretrained(target)
            command = [sys.executable, "-m", "archzoo", "bench", str(target), "--dtype", dtype]
            code = subprocess.run([*command, "--rounds", str(rounds)], check=False).returncode
            if code:
                return code
    return 0


def main() -> int:
    """Write the checkpoint, then measure it in both dtypes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    return bench_copies(demo_weights(), "SmolLM2-135M", parser.parse_args().rounds)


if __name__ == "__main__":
    sys.exit(main())
