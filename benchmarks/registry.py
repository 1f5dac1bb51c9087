"""What finding a model costs with 500 plugins installed, beside published figures of peers.

    python benchmarks/registry.py [--rounds 7]

Every command runs in a fresh interpreter; rounds are interleaved and medians are shown. Time is
counted from the first line of Python code, so the start of the interpreter is not in it. Bytecode
is compiled once, as pip does when it installs a package.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DISTRIBUTIONS = 500
BROKEN = 20
BUDGET_MS, BUDGET_MODULES = 100, 220

SCRIPT = """
import sys, time
wall, cpu, before = time.perf_counter(), time.process_time(), set(sys.modules)
import contextlib, io, json
out = io.StringIO()
with contextlib.redirect_stdout(out):
    ACTION
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
new = set(sys.modules) - before
print(json.dumps({
    "wall": wall * 1000, "cpu": cpu * 1000, "modules": len(new),
    "heavy": sorted(new & {"torch", "transformers", "safetensors", "numpy", "rich"}),
    "plugins": len({m.partition(".")[0] for m in new if m.startswith("many_")}),
}))
"""
ACTIONS = {
    "archzoo list": "from archzoo.cli import main; main(['list'])",
    "archzoo why": "from archzoo.cli import main; main(['why', 'A7ForCausalLM'])",
    "archzoo doctor": "from archzoo.cli import main; main(['doctor'])",
    "archzoo.resolve": "from archzoo.registry import resolve; resolve('A7ForCausalLM')",
}
PEERS = (
    ("SGLang 0.5.23, importing its Llama module", "6600 to 9400", "2800", "our measurement"),
    ("vLLM, cold inspection of one model", "10100", "", "vLLM issue 51746"),
)


def install(site: Path) -> None:
    """500 distributions with 750 architectures, 20 of them broken in four ways."""
    for number in range(DISTRIBUTIONS):
        name = f"many_{number}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        lines += ["Provides-Extra: fla", "Requires-Dist: archzoo>=0.0.1"]
        lines += [f"Requires-Dist: archzoo<{900 + number}", "Requires-Dist: zq; extra == 'fla'"]
        entries = ["[archzoo.models]", f"A{number}ForCausalLM = {name}.model:A"]
        if number % 2:
            entries.append(f"B{number}ForCausalLM = {name}.model:B [fla]")
        metadata, points = "\n".join(lines).encode(), "\n".join(entries).encode()
        if number % (DISTRIBUTIONS // BROKEN) == 0:
            metadata, points = _broken(number // (DISTRIBUTIONS // BROKEN) % 4, metadata, points)
        (info / "METADATA").write_bytes(metadata + b"\n")
        (info / "entry_points.txt").write_bytes(points + b"\n")
    (site / "many_7").mkdir()
    (site / "many_7" / "__init__.py").write_text("")
    (site / "many_7" / "model.py").write_text("class A: pass\n")


def _broken(way: int, metadata: bytes, points: bytes) -> tuple[bytes, bytes]:
    return (
        (b"Name: \xff", points),
        (metadata, points + b"\nno entry at all"),
        (metadata, points.replace(b":A", b" A")),
        (metadata.replace(b">=0.0.1", b">=99"), points),
    )[way]


def measure(action: str, site: Path) -> dict[str, float]:
    """One run of one action in a fresh interpreter."""
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(site.parent / "bytecode")
    places = (str(site), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("ACTION", action)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ACTIONS}
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        install(site)
        for _ in range(rounds + 1):  # the first warms the page cache and is left out
            for name, action in ACTIONS.items():
                runs[name].append(measure(action, site))
    print("| what | ms | ms of processor | new modules | heavy libraries | plugins imported |")
    print("|---|---|---|---|---|---|")
    for name, all_runs in runs.items():
        kept = all_runs[1:]
        wall, cpu = (statistics.median(run[key] for run in kept) for key in ("wall", "cpu"))
        last = kept[-1]
        heavy = ", ".join(last["heavy"]) or "none"  # type: ignore[arg-type]  # a list in JSON
        print(
            f"| `{name}` | {wall:.0f} | {cpu:.0f} | {last['modules']} | {heavy} "
            f"| {last['plugins']} |"
        )
    for what, milliseconds, modules, source in PEERS:
        print(f"| {what} ({source}) | {milliseconds} | | {modules} | | |")
    print(f"\nBudget: {BUDGET_MS} ms, {BUDGET_MODULES} modules, no heavy library.")


if __name__ == "__main__":
    main()
