"""Loading 2.2 GB of bfloat16 from a warm page cache, beside one plain copy and transformers.

    python benchmarks/load.py [--rounds 5] [--folder KEPT]     (on Linux: memory is read in /proc)

A checkpoint in the shape of TinyLlama 1.1B, of five shards, is written once and removed afterwards
(or kept in a folder that is given). Each contender loads it in a fresh process, twice; rounds are
interleaved, and each begins with another contender. ``from archzoo import load`` and ``from transformers
import AutoModelForCausalLM`` come before time is counted; what they import only when asked to load
is part of the first call.

    copy        the floor: each tensor copied from its mapping into memory of the merged parameters
    archzoo     archzoo.load, which looks at every value
    unchecked   archzoo.load(check_values=False)
    transformers    from_pretrained, and one byte of each page read, for it only maps the files

Columns: seconds of the first call; of the same call again, when the first model is gone; of
processor in that; of the first forward of one token, in which archzoo packs; peak memory of the
first call, anonymous and in all.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, VOCAB, SHARDS = 22, 2048, 5632, 32, 4, 32000, 5
CONTENDERS = ("copy", "archzoo", "unchecked", "transformers")
STATUS = Path("/proc/self/status")
MIB = 2**20


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, in the order in which trainers write them."""
    kv = HIDDEN // HEADS * KV_HEADS
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found |= {
            at + "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            at + "self_attn.k_proj.weight": (kv, HIDDEN),
            at + "self_attn.v_proj.weight": (kv, HIDDEN),
            at + "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            at + "mlp.gate_proj.weight": (FFN, HIDDEN),
            at + "mlp.up_proj.weight": (FFN, HIDDEN),
            at + "mlp.down_proj.weight": (HIDDEN, FFN),
            at + "input_layernorm.weight": (HIDDEN,),
            at + "post_attention_layernorm.weight": (HIDDEN,),
        }
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write(folder: Path) -> None:
    """The checkpoint, in shards of about equal size."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = torch.randn(VOCAB * HIDDEN, generator=torch.Generator().manual_seed(0))
    noise = noise.mul_(0.02).to(torch.bfloat16)
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes().items()}
    total, index = sum(sizes.values()), dict[str, str]()
    shard, done = dict[str, torch.Tensor](), 0
    for name, shape in shapes().items():
        shard[name] = noise[: sizes[name]].view(shape).clone()
        done += sizes[name]
        number = len(set(index.values())) + 1
        if done * SHARDS >= total * number:
            file = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
            save_file(shard, folder / file, {"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard = {}
    text = {"metadata": {"total_size": 2 * total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": HIDDEN,
                "intermediate_size": FFN,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV_HEADS,
                "vocab_size": VOCAB,
                "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            }
        )
    )


class Watch:
    """Peak memory of what is done inside.

    Attributes:
        anonymous: bytes.
        peak: bytes, mapped files included.
    """

    anonymous = peak = 0

    def __enter__(self) -> Watch:
        """Begin."""
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and keep what was found."""
        self._ended.set()
        self._sampler.join()
        self.peak, self.anonymous = memory("VmHWM"), max(self.anonymous, memory("RssAnon"))

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self.anonymous = max(self.anonymous, memory("RssAnon"))


def timed(load: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, seconds, and seconds of processor."""
    begin, before = perf_counter(), process_time()
    loaded = load()
    return loaded, perf_counter() - begin, process_time() - before


def memory(what: str) -> int:
    """A line of this process's status, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def copy(folder: Path) -> Callable[[], Any]:
    """One copy of every byte into memory for merged parameters."""

    def load() -> list[torch.Tensor]:
        merged: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as opened:
                for name in opened.keys():
                    into(merged, name).copy_(opened.get_tensor(name))
        return list(merged.values())

    return load


def into(merged: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Rows of a merged parameter that a tensor fills; the parameter is made when first needed."""
    layer, _, part = name.removesuffix("_proj.weight").rpartition(".")
    parts = next((group for group in (("q", "k", "v"), ("gate", "up")) if part in group), (part,))
    stored = shapes()
    if len(parts) == 1:
        rows, offset, key = stored[name][0], 0, name
    else:
        sizes = [stored[f"{layer}.{each}_proj.weight"][0] for each in parts]
        at, key = parts.index(part), f"{layer}.{parts}"
        rows, offset = sum(sizes), sum(sizes[:at])
    if key not in merged:
        merged[key] = torch.empty((rows, *stored[name][1:]), dtype=torch.bfloat16)
    return merged[key][offset : offset + stored[name][0]]


def archzoo(folder: Path, **options: Any) -> Callable[[], Any]:
    """The load call as a user makes it."""
    from archzoo import load

    return lambda: load(folder, **options)


def transformers(folder: Path) -> Callable[[], Any]:
    """Mapped, then every page of every parameter touched."""
    from transformers import AutoModelForCausalLM

    def load() -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        for parameter in model.parameters():
            parameter.data.view(-1).view(torch.uint8)[::4096].sum()
        return model

    return load


def first_forward(contender: str, model: Any) -> float:
    """Seconds of one token's forward after loading."""
    begin = perf_counter()
    if contender == "transformers":
        with torch.inference_mode():
            model(torch.tensor([[1]]))
    elif contender != "copy":
        model.generate([1], max_new_tokens=1, ignore_eos=True)
    return perf_counter() - begin


def measure(contender: str, folder: Path) -> dict[str, float]:
    """In this process."""
    loads: dict[str, Callable[[], Callable[[], Any]]] = {
        "copy": lambda: copy(folder),
        "archzoo": lambda: archzoo(folder),
        "unchecked": lambda: archzoo(folder, check_values=False),
        "transformers": lambda: transformers(folder),
    }
    load = loads[contender]()
    with Watch() as watch:
        model, first, _ = timed(load)
    forward = first_forward(contender, model)
    del model
    gc.collect()
    _, again, processor = timed(load)
    return {
        "load s": first,
        "again s": again,
        "processor s": processor,
        "first forward s": forward,
        "anonymous MiB": watch.anonymous / MIB,
        "peak MiB": watch.peak / MIB,
    }


def rounds(folder: Path, count: int) -> dict[str, list[dict[str, float]]]:
    """Every contender, so many times, in fresh processes."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(count):
        for at in range(len(CONTENDERS)):
            name = CONTENDERS[(at + number) % len(CONTENDERS)]
            command = [sys.executable, __file__, "--folder", str(folder), "--contender", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"round {number + 1} of {count}", file=sys.stderr)
    return found


def show(found: dict[str, list[dict[str, float]]], weights: float) -> None:
    """Medians, and medians of the rounds' ratios."""
    columns = tuple(found["archzoo"][0])
    print(f"weights: {weights / MIB:,.0f} MiB, {torch.get_num_threads()} threads\n")
    print("| | " + " | ".join(columns) + " |\n|---" + "|---" * len(columns) + "|")
    for name, runs in found.items():
        cells = [median(run[column] for run in runs) for column in columns]
        print(f"| {name} | " + " | ".join(_number(cell) for cell in cells) + " |")
    print()
    for top, bottom, most in (
        ("archzoo", "copy", 1.25),
        ("archzoo", "transformers", 0.45),
        ("archzoo", "unchecked", 1.25),
    ):
        for column in columns[:3]:
            pairs = zip(found[top], found[bottom], strict=True)
            ratio = median(one[column] / other[column] for one, other in pairs)
            print(f"{top} / {bottom}, {column}: {ratio:.2f} (wanted: at most {most})")
    for column, factor in (("anonymous MiB", 1.05), ("peak MiB", 1.3)):
        peak = max(run[column] for run in found["archzoo"])
        print(
            f"archzoo, {column}: {peak:,.0f} (wanted: at most {factor * weights / MIB + 200:,.0f})"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> int:
    """Write, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options.contender, options.folder)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary, "TinyLlama-shape")
        if not (folder / "config.json").exists():
            write(folder)
        for file in folder.glob("*.safetensors"):
            file.read_bytes()  # into the page cache
        for package in ("core", "plugins/llama"):  # as pip does when it installs
            compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)
        weights = sum(2 * torch.Size(shape).numel() for shape in shapes().values())
        show(rounds(folder, options.rounds), weights)
    return 0


if __name__ == "__main__":
    sys.exit(main())
