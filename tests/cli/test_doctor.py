"""doctor: tells everything, disturbs nothing, survives whatever a plugin does when it is probed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agents import HANGING
from cli.conftest import Run
from registry.sites import Site

from archzoo.cli import doctor, machine, probing
from archzoo.cli.doctor import Report, as_record, conclusion
from archzoo.cli.doctor_text import as_text
from archzoo.registry import Catalog
from archzoo.settings import Settings

GOOD = "class A: pass\n"
MARK = "from archzoo.hooks import hookimpl\n@hookimpl\n"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ARCHZOO_", "SGLANG_")):
            monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def report(catalog: Catalog, **more: object) -> Report:
    return Report(machine.look(), catalog, **more)  # type: ignore[arg-type]  # test helper


def test_nothing_installed(site: Site) -> None:
    found = report(site.catalog())
    assert not found.faults and conclusion(found).endswith("run: pip install archzoo-llama")
    assert as_record(found)["plugins"] == []
    assert as_text(found, 80).splitlines()[-1].startswith("Nothing is broken.")


def test_skips_are_fine_and_faults_are_not(site: Site) -> None:
    site.install("lacking", {"AForCausalLM": "x:A"}, requires=["zq-nowhere"])
    assert not report(site.catalog()).faults
    site.install("broken", {"BForCausalLM": "no target"})
    site.install("typo", {"CForCausalLM": "x:A"}, group="archzoo.modles")
    found = report(site.catalog(external=("zq_nowhere",)))
    record = as_record(found)
    assert [(each["source"], each["code"]) for each in record["broken"]] == [
        ("broken 1.0", "entry-point-invalid"),
        ("typo 1.0", "entry-point-invalid"),
        ("ARCHZOO_EXTERNAL_MODEL_PACKAGE", "external-not-found"),
    ]
    assert all(each["fix"] for each in record["broken"]) and not record["ok"]
    assert not report(site.catalog(plugins=frozenset({"lacking"}))).faults


def test_copies_contests_and_what_is_left_out(site: Site, tmp_path: Path) -> None:
    for place in (site, Site(tmp_path / "other")):
        place.install("one", {"AForCausalLM": "one:A"})
    site.install("two", {"AForCausalLM": "two:A"})
    catalog = Catalog([str(site.folder), str(tmp_path / "other")], settings=Settings())
    record = as_record(report(catalog))
    (first, second) = record["plugins"]
    assert first["shadowed"] == [str(tmp_path / "other" / "one-1.0.dist-info")]
    assert second["shadowed"] == [] and record["contested"][0]["name"] == "AForCausalLM"
    shown = as_text(report(catalog), 300)
    assert f"hides  {tmp_path}/other/one-1.0.dist-info" in shown
    assert "AForCausalLM is claimed by one 1.0 and two 1.0" in shown and "ARCHZOO_PREFER" in shown
    assert conclusion(report(catalog)) == "Nothing is broken: 2 ready. 1 contested, see above."


def test_strict_mode_that_refuses_is_a_fault(site: Site) -> None:
    site.install("lacking", {"AForCausalLM": "x:A"}, requires=["zq-nowhere"])
    (fault,) = report(site.catalog(strict=True)).faults
    assert fault.reason.code == "strict-refuses" and fault.culprit == "ARCHZOO_STRICT"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DISABLED_MODEL_ARCHS", "A")
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "b")
    monkeypatch.setenv("ARCHZOO_DISABLED_MODEL_ARCHS", "C")
    found = {each.name: each for each in doctor.variables()}
    assert found["SGLANG_DISABLED_MODEL_ARCHS"].overruled_by == "ARCHZOO_DISABLED_MODEL_ARCHS"
    assert found["SGLANG_EXTERNAL_MODEL_PACKAGE"].overruled_by == ""
    assert found["SGLANG_EXTERNAL_MODEL_PACKAGE"].alias_of == "ARCHZOO_EXTERNAL_MODEL_PACKAGE"
    assert found["ARCHZOO_DISABLED_MODEL_ARCHS"].alias_of == ""


def test_a_bad_variable_is_told_beside_the_rest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_STRICT", "perhaps")
    done = run("doctor", "--probe")
    assert done.code == 1 and done.err == ""
    assert "[setting-invalid] 'perhaps'" in done.out and "archzoo-llama" in done.out
    assert "IMPORT" not in done.out


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t NVIDIA H200\nIRQ: 1\n")
    seen = machine.see_devices(tmp_path / "gpus")
    assert seen.found == ("NVIDIA H200", "NVIDIA H200") and seen.how == str(tmp_path / "gpus")
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setattr(machine, "which", lambda _name: str(tool))
    for script, found in (
        ("echo 'GPU 0: NVIDIA A'", ("GPU 0: NVIDIA A",)),
        ("echo 'GPU 0: broken'; exit 9", ()),
        ("sleep 9", ()),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setattr(machine, "_PATIENCE", 0.3 if script.startswith("sleep") else HANGING)
        assert machine.see_devices(tmp_path / "none").found == found
    monkeypatch.setattr(machine, "which", lambda _name: None)
    assert "neither" in machine.see_devices(tmp_path / "none").how


def test_the_command_without_probing_imports_nothing(run: Run) -> None:
    done = run("doctor", "--json")
    record = json.loads(done.out)
    assert done.code == 0 and record["ok"] and len(record["fingerprint"]) == 64
    assert record["machine"]["libraries"]["torch"] and record["machine"]["usable"] >= 1
    assert all(each["probe"] is None for each in record["providers"])


FAULTS = {
    # kind: (source, outcome, code, remark)
    "good": (GOOD, "ok", "", ""),
    "exits": ("raise SystemExit(3)\n", "failed", "import-exited", ""),
    "dies": (
        "print('bye', flush=True)\nimport os\nos._exit(0)\n",
        "failed",
        "interpreter-died",
        "",
    ),
    "killed": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "failed",
        "interpreter-died",
        "",
    ),
    "interrupts": ("raise KeyboardInterrupt\n", "failed", "import-failed", ""),
    "prints": ("print('{\"outcome\": 1}')\nprint('b')\n" + GOOD, "ok", "", "prints 2 lines"),
    "floods": ("print('x' * 300_000)\n" + GOOD, "ok", "", "prints 1 lines"),
    "closes": ("import os, sys\nsys.stdout.close()\nos.close(1)\n" + GOOD, "ok", "", ""),
    "lingers": (
        "import threading, time, subprocess\n"
        "threading.Thread(target=time.sleep, args=(9999,)).start()\n"
        "subprocess.Popen(['sleep', '9999'])\n" + GOOD,
        "ok",
        "",
        "",
    ),
    "exit_hook": ("import atexit\natexit.register(print, 'late')\n" + GOOD, "ok", "", ""),
    "optional": ("import zq_nowhere\n" + GOOD, "skipped", "dependency-missing", ""),
    "warns": ("import warnings\nwarnings.warn('odd')\n" + GOOD, "ok", "", "odd"),
}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What ``doctor --probe --json`` says of all of them in one run, by name."""
    site = Site(tmp_path_factory.mktemp("probed") / "site")
    for kind, (source, *_) in FAULTS.items():
        requires = ["zq-nowhere; extra == 'all'"]
        site.install(
            f"zp-{kind}",
            {f"{kind}ForCausalLM": f"zp_{kind}:A"},
            requires=requires,
            extras=["all"],
            files={f"zp_{kind}.py": source},
        )
    site.install("zp-backend", {"zpb": "zp_good:A"}, group="archzoo.attention_backends")
    hooks = {
        "hookfine": f"{MARK}def archzoo_architectures():\n    return {{'LateA': 'zp_good:A'}}\n",
        "hookbad": f"{MARK}def archzoo_architectures():\n    return {{'LateB': 'zp_good:Nope'}}\n",
        "hookraises": f"{MARK}def archzoo_architectures():\n    raise OSError('boom')\n",
    }
    for kind, source in hooks.items():
        site.install(
            f"zp-{kind}", {kind: f"zp_{kind}"}, group="archzoo.plugins",
            files={f"zp_{kind}.py": source},
        )  # fmt: skip
    (site.folder / "zp_outer.py").write_text("EntryClass = [c for c in (int,)][0]\n")
    environment = {**os.environ, "ARCHZOO_EXTERNAL_MODEL_PACKAGE": "zp_outer"}
    names = ",".join(f"zp-{kind}" for kind in (*FAULTS, *hooks, "backend"))
    places = (str(site.folder), os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, places))
    environment |= {"PYTHONPATH": path, "ARCHZOO_PLUGINS": names}
    command = [sys.executable, "-m", "archzoo", "doctor", "--probe", "--json"]
    done = subprocess.run(
        [*command, "--probe-timeout", str(2 * HANGING)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGING,  # of something that waits for what a plugin left running
    )
    assert done.returncode == 1 and done.stderr == ""
    record = json.loads(done.stdout)
    found = {each["architecture"]: each for each in record["providers"]}
    found["external"] = record["external"][0]
    return found


@pytest.mark.parametrize("kind", FAULTS)
def test_probe(kind: str, probed: dict[str, dict[str, object]]) -> None:
    _, outcome, code, remark = FAULTS[kind]
    entry = probed[f"{kind}ForCausalLM"]
    probe = entry["probe"]
    assert isinstance(probe, dict)
    assert (probe["outcome"], probe["code"]) == (outcome, code), probe
    assert probe["ok"] is (outcome == "ok") and bool(probe["fix"]) is (outcome != "ok")
    assert remark in " ".join(probe["remarks"])
    assert entry["distribution"] == f"zp-{kind}"


def test_an_import_that_hangs_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install(
        "zqhang",
        {"AForCausalLM": "zqhang:A"},
        files={"zqhang.py": "import time\ntime.sleep(9999)\n"},
    )
    monkeypatch.syspath_prepend(str(site.folder))
    monkeypatch.setenv("ARCHZOO_PLUGINS", "zqhang")
    (probe,) = probing.probe(probing.targets(site.catalog()), 0.5)
    (reason,) = probe.reasons
    assert (probe.outcome, reason.code) == ("failed", "import-timeout")
    assert "zqhang:A is not done after 0.5 s" in reason.problem and "--probe-timeout" in reason.fix


def test_probe_tells_how_the_interpreter_ended(probed: dict[str, dict[str, object]]) -> None:
    dies, killed = (probed[f"{kind}ForCausalLM"]["probe"] for kind in ("dies", "killed"))
    assert "(exit code 0); the last it printed: bye" in dies["problem"]  # type: ignore[index]  # JSON
    assert "(signal SIGKILL)" in killed["problem"]  # type: ignore[index]  # JSON
    optional = probed["optionalForCausalLM"]["probe"]
    assert optional["fix"] == "run: pip install 'zp-optional[all]'"  # type: ignore[index]  # JSON


def test_probe_of_hooks_backends_and_external_packages(
    probed: dict[str, dict[str, object]],
) -> None:
    def code(name: str) -> object:
        return probed[name]["probe"]["code"]  # type: ignore[index]  # JSON

    assert code("zpb") == "" and code("external") == ""
    assert code("hookfine") == "" and code("hookraises") == "hook-raised"
    assert code("hookbad") == "name-missing"
    assert "it offers LateA" in probed["hookfine"]["probe"]["remarks"]  # type: ignore[index]  # JSON
    assert "it offers int" in probed["external"]["probe"]["remarks"]  # type: ignore[index]  # JSON


def test_an_interrupt_ends_what_was_started(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    source = (
        f"import os, time\nopen({str(alive)!r}, 'w').write(str(os.getpid()))\ntime.sleep(9999)\n"
    )
    site.install("zqwait", {"AForCausalLM": "zqwait:A"}, files={"zqwait.py": source})
    monkeypatch.syspath_prepend(str(site.folder))
    monkeypatch.setenv("ARCHZOO_PLUGINS", "zqwait")

    def tell(*_: object) -> None:
        if alive.exists() and alive.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probing.probe(probing.targets(site.catalog()), HANGING, tell)
    with pytest.raises(ProcessLookupError):
        os.kill(int(alive.read_text()), 0)
