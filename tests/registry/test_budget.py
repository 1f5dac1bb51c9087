"""500 plugins, some broken: what finding a model reads and imports. Times are in ``benchmarks/``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from registry.sites import Site

SCRIPT = """
import contextlib, io, json, sys
from collections import Counter
before, opened, out = set(sys.modules), Counter(), io.StringIO()
sys.addaudithook(lambda event, args: event == "open" and opened.update([str(args[0])]))
with contextlib.redirect_stdout(out):
    ACTION
new = set(sys.modules) - before
read = {path: count for path, count in opened.items() if ".dist-info" in path}
print(json.dumps({
    "result": result, "lines": len(out.getvalue().splitlines()), "modules": len(new),
    "plugins": sorted(m for m in new if m.startswith("budget_")),
    "heavy": sorted(new & set(HEAVY)), "slow": sorted(new & set(SLOW)),
    "files": len([path for path in read if "budget_" in path]), "repeats": max(read.values()),
}))
"""
HEAVY = ("torch", "transformers", "rich", "safetensors", "numpy", "typer")
SLOW = (  # each of these imports alone costs a good part of the budget
    "importlib.metadata", "packaging.requirements", "packaging.tags", "dataclasses", "inspect",
    "email", "logging", "subprocess",
)  # fmt: skip
ACTIONS = {
    "list": "from archzoo.cli import main; result = main(['list'])",
    "why": "from archzoo.cli import main; result = main(['why', 'A7ForCausalLM'])",
    "resolve": "from archzoo.registry import resolve; result = resolve('A7ForCausalLM').__module__",
    "states": "from archzoo.registry import catalog; "
    "result = Counter(str(p.state) for p in catalog().providers())",
    "doctor": "from archzoo.cli import main; result = main(['doctor'])",
}
COUNT, ARCHITECTURES = 500, 750
BUDGET_MODULES = 100


@pytest.fixture
def crowd(site: Site) -> Site:
    """500 distributions, 750 architectures; 20 of the distributions are broken."""
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


def measure(site: Site, action: str) -> dict[str, object]:
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    places = (str(site.folder), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    script = SCRIPT.replace("ACTION", ACTIONS[action])
    script = script.replace("HEAVY", repr(HEAVY)).replace("SLOW", repr(SLOW))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("action", "result", "files"),
    [
        ("list", 0, 2 * COUNT),
        ("why", 0, COUNT + 1),
        ("resolve", "budget_7.model", COUNT + 2),  # and its RECORD
    ],
)
def test_what_finding_a_model_costs(crowd: Site, action: str, result: object, files: int) -> None:
    run = measure(crowd, action)
    assert run["result"] == result
    assert run["heavy"] == [] and run["slow"] == []
    assert int(str(run["modules"])) < BUDGET_MODULES
    assert run["plugins"] == (["budget_7", "budget_7.model"] if action == "resolve" else [])
    assert run["files"] == files and run["repeats"] == 1  # each file once, and none beyond need


def test_list_shows_every_architecture(crowd: Site) -> None:
    assert int(str(measure(crowd, "list")["lines"])) > ARCHITECTURES


def test_doctor_imports_no_plugin(crowd: Site) -> None:
    run = measure(crowd, "doctor")
    assert run["result"] == 1 and run["plugins"] == [] and run["heavy"] == []
    assert int(str(run["lines"])) > COUNT and run["repeats"] == 1


def test_states_of_all(crowd: Site) -> None:
    states = measure(crowd, "states")["result"]
    assert isinstance(states, dict)
    assert states["skipped"] == 240 and states["broken"] == 30 and states["ready"] >= 480
