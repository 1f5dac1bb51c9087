"""500 plugins, some broken: bookkeeping stays within its budget and loads no heavy library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from registry.sites import Site

SCRIPT = """
import json, sys, time
before = set(sys.modules)
import archzoo.registry as registry
after_import = time.process_time()
found = registry.resolve("A7ForCausalLM")
spent = time.process_time() - after_import
listed = [(p.name, str(p.state)) for p in registry.catalog().providers()]
new = set(sys.modules) - before
print(json.dumps({
    "found": found.__module__, "ms": spent * 1000, "modules": len(new),
    "plugins": sorted(m for m in new if m.startswith("budget_")),
    "heavy": sorted(new & {"torch", "transformers", "rich", "safetensors", "numpy", "typer"}),
    "states": [sum(s == k for _, s in listed) for k in ("ready", "skipped", "broken")],
}))
"""

COMMAND = """
import contextlib, io, json, sys, time
before = set(sys.modules)
import archzoo.cli.quick
from archzoo.cli import main
after_import = time.process_time()
out = io.StringIO()
with contextlib.redirect_stdout(out):
    code = main(sys.argv[1:])
spent = time.process_time() - after_import
new = set(sys.modules) - before
print(json.dumps({
    "code": code, "ms": spent * 1000, "lines": len(out.getvalue().splitlines()), "modules": len(new),
    "plugins": sorted(m for m in new if m.startswith("budget_")),
    "heavy": sorted(new & {"torch", "transformers", "rich", "safetensors", "numpy", "typer"}),
}))
"""

COUNT = 500
BUDGET_MS = 100
BUDGET_MODULES = 220


@pytest.fixture
def crowd(site: Site) -> Site:
    """500 distributions, 750 architectures, 20 of the distributions broken."""
    for number in range(COUNT):
        name = f"budget_{number}"
        entries = {f"A{number}ForCausalLM": f"{name}.model:A"}
        if number % 2:
            entries[f"B{number}ForCausalLM"] = f"{name}.model:B [fla]"
        requires = ["archzoo>=0.0.1", f"archzoo<{900 + number}", "zq-fla; extra == 'fla'"]
        info = site.install(name, entries, requires=requires, extras=["fla"])
        if number % 25 == 0:
            (info / "METADATA").write_bytes(b"Name: \xff\n")
    package = site.folder / "budget_7"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("class A: pass\nclass B: pass\n")
    return site


def measure(site: Site, script: str = SCRIPT, *arguments: str) -> dict[str, object]:
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    places = (str(site.folder), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_500_plugins(crowd: Site) -> None:
    # Processor time, best of three: other work on the machine is not what is measured.
    runs = [measure(crowd) for _ in range(3)]
    first = runs[0]
    assert first["found"] == "budget_7.model"
    assert first["heavy"] == []
    assert first["plugins"] == ["budget_7", "budget_7.model"]
    assert int(str(first["modules"])) < BUDGET_MODULES
    ready, skipped, broken = first["states"]  # type: ignore[misc]  # a list of three numbers
    assert skipped == 240 and broken == 30 and ready >= 480
    assert min(float(str(run["ms"])) for run in runs) < BUDGET_MS


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [(("list",), 0, 1000), (("why", "A7ForCausalLM"), 0, 5), (("doctor",), 1, 1000)],
    ids=["list", "why", "doctor"],
)
def test_commands_over_500_plugins(
    crowd: Site, arguments: tuple[str, ...], code: int, lines: int
) -> None:
    runs = [measure(crowd, COMMAND, *arguments) for _ in range(3)]
    first = runs[0]
    assert first["code"] == code and int(str(first["lines"])) >= lines
    assert first["heavy"] == [] and first["plugins"] == []
    assert int(str(first["modules"])) < BUDGET_MODULES
    if arguments[0] != "doctor":  # it states every plugin's place, and looks at the machine
        assert min(float(str(run["ms"])) for run in runs) < BUDGET_MS
