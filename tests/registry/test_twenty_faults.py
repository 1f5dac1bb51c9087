"""Twenty ways in which a plugin can be broken: the others work, and the culprit is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents import HANGING
from registry.sites import Site

from archzoo.errors import MissingDependency, PluginLoadError, UnknownArchitectureError
from archzoo.registry import ProviderState, resolve_from

BODY = "class A: pass\n"
HOOKS = "from archzoo.hooks import hookimpl\n"
ANSWER = "@hookimpl\ndef archzoo_architectures(): return {}\n"
FIRST = "first"  # folder of a site that is searched before the site itself


@dataclass(frozen=True)
class Fault:
    """One way to be broken.

    Args:
        build: installs the plugin under a name that is also that of its package.
        code: reason code that names the fault; empty where nothing is wrong enough to refuse.
        words: what the message says besides, or the remark on an import that works.
        tells: who tells the code: ``metadata``, ``import``, ``hook``, or ``remark``.
    """

    build: Callable[[Site, str], object]
    code: str
    words: str
    tells: str = "import"


def module(text: str, **others: str) -> Callable[[Site, str], object]:
    """A plugin whose model's module holds a text; NAME in it is the package."""

    def build(site: Site, name: str) -> object:
        sources = {"__init__": "", "model": text, **others}
        files = {f"{name}/{key}.py": each.replace("NAME", name) for key, each in sources.items()}
        return site.install(name, {f"{name}ForCausalLM": f"{name}.model:A"}, files=files)

    return build


def metadata(extra: str = "", **changes: Any) -> Callable[[Site, str], Path]:
    """A plugin that is sound but for its metadata."""

    def build(site: Site, name: str) -> Path:
        target = {f"{name}ForCausalLM": f"{name}.model:A {extra}".rstrip()}
        files = {f"{name}/__init__.py": "", f"{name}/model.py": BODY}
        return site.install(name, target, files=files, **changes)

    return build


def metadata_file(file: str, content: str) -> Callable[[Site, str], object]:
    """A plugin one of whose metadata files holds something; NAME in it is the plugin."""

    def build(site: Site, name: str) -> object:
        info = metadata()(site, name)
        return (info / file).write_bytes(content.replace("NAME", name).encode("latin-1"))

    return build


def missing_file(site: Site, name: str) -> None:
    metadata()(site, name)
    (site.folder / name / "model.py").unlink()


def shadowed(site: Site, name: str) -> None:
    info = metadata()(site, name)
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/model.py,,\n")
    hiding = site.folder / FIRST / name
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").write_text("")


def hooks(text: str) -> Callable[[Site, str], object]:
    """A plugin whose model works and whose hook module holds a text."""

    def build(site: Site, name: str) -> object:
        info = metadata()(site, name)
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[archzoo.plugins]\n{name}_hooks = {name}.hooks\n")
        return (site.folder / name / "hooks.py").write_text(HOOKS + text)

    return build


LINE = "[archzoo.models]\nNAMEForCausalLM = "
FAULTS = {
    "syntax error": Fault(module("class A(:\n"), "import-failed", "SyntaxError: "),
    "missing module": Fault(
        module("import zq_nowhere\n"), "import-failed", "'zq_nowhere', which zqbad_missing_module"
    ),
    "missing name": Fault(module("class B: pass\n"), "name-missing", "no attribute 'A'"),
    "wrong type": Fault(module("A = 3\n"), "not-a-class", "model:A is 3, not a class"),
    "raises at import": Fault(
        module("raise ValueError('boom 17')\n"), "import-failed", "ValueError: boom 17"
    ),
    "exits": Fault(module("raise SystemExit(3)\n"), "import-exited", "(exit code 3)"),
    "prints": Fault(module("print('hello', flush=True)\n" + BODY), "", "prints 1 lines", "remark"),
    "slow": Fault(module("import time\ntime.sleep(0.8)\n" + BODY), "", "", "remark"),
    "imports torch": Fault(
        hooks("import torch\n" + ANSWER), "", "its hook module imports torch", "remark"
    ),
    "circular": Fault(
        module("from NAME.other import B\n" + BODY, other="from NAME.model import A\nB = A\n"),
        "import-failed",
        "partially initialized module",
    ),
    "bad entry point": Fault(
        metadata_file("entry_points.txt", LINE + "not a target\n"),
        "entry-point-invalid",
        "target 'not a target' is not 'module:Class'",
        "metadata",
    ),
    "bad metadata": Fault(
        metadata_file("METADATA", "nothing of use\n"),
        "metadata-invalid",
        "its METADATA names no distribution or no version",
        "metadata",
    ),
    "not utf8": Fault(
        # Such an entry_points.txt (see test_scan) stops torch itself, which reads those of all.
        metadata_file("METADATA", "Name: NAME\nVersion: 1.0\nAuthor: \xe9\xff\n\n"),
        "metadata-invalid",
        "its METADATA is not UTF-8",
        "metadata",
    ),
    "duplicate names": Fault(
        metadata_file("entry_points.txt", LINE + "NAME.model:A\nNAMEForCausalLM = NAME:B\n"),
        "entry-point-invalid",
        "is listed twice with different targets",
        "metadata",
    ),
    "missing extra": Fault(
        metadata("[fla]", requires=["zq-fla>=1; extra == 'fla'"], extras=["fla"]),
        "requirement-missing",
        "run: pip install 'zq-fla>=1'",
        "metadata",
    ),
    "wrong core": Fault(
        metadata(requires=["archzoo>=99"]), "core-version", "'archzoo>=99' is needed", "metadata"
    ),
    "missing file": Fault(
        missing_file, "module-missing", "pip install --force-reinstall zqbad_missing_file"
    ),
    "shadowed": Fault(shadowed, "module-shadowed", "which hides "),
    "hook signature": Fault(
        hooks(ANSWER.replace("()", "(wrong)")),
        "hook-invalid",
        "argument 'wrong' is not expected",
        "hook",
    ),
    "hook raises": Fault(
        hooks(ANSWER.replace("return {}", "raise OSError('boom 18')")),
        "hook-raised",
        "raised OSError: boom 18",
        "hook",
    ),
}


def plugin(kind: str) -> str:
    return f"zqbad_{kind.replace(' ', '_')}"


def architecture(kind: str) -> str:
    return f"{plugin(kind)}ForCausalLM"


def install(site: Site, kind: str) -> None:
    FAULTS[kind].build(site, plugin(kind))


def install_good(site: Site) -> None:
    site.install("zqgood", {"zqgoodForCausalLM": "zqgood:A"}, files={"zqgood.py": BODY})


def told_by(*tells: str) -> list[str]:
    return [kind for kind in FAULTS if FAULTS[kind].tells in tells]


def test_there_are_twenty() -> None:
    assert len(FAULTS) == 20
    assert sum(len(told_by(how)) for how in ("metadata", "import", "hook", "remark")) == 20


# --- resolve: one at a time, in this process


@pytest.fixture
def broken(
    request: pytest.FixtureRequest, live_site: Site, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """A broken plugin beside a sound one."""
    install(live_site, request.param)
    install_good(live_site)
    if (live_site.folder / FIRST).exists():
        monkeypatch.syspath_prepend(str(live_site.folder / FIRST))
    return live_site


def each_fault(*tells: str) -> pytest.MarkDecorator:
    """The faults that are told in some way, each with its plugin installed."""
    pairs = [(kind, kind) for kind in told_by(*tells)]
    return pytest.mark.parametrize(("kind", "broken"), pairs, indirect=["broken"])


@each_fault("metadata", "import", "hook", "remark")
def test_the_sound_one_is_served(kind: str, broken: Site) -> None:
    catalog = broken.catalog()
    assert resolve_from(catalog, "zqgoodForCausalLM").__module__ == "zqgood"
    assert not any(name.startswith("zqbad") for name in sys.modules)
    if FAULTS[kind].tells in ("metadata", "import"):
        with pytest.raises((PluginLoadError, UnknownArchitectureError)):
            resolve_from(catalog, architecture(kind))
    assert resolve_from(catalog, "zqgoodForCausalLM").__module__ == "zqgood"


@each_fault("metadata")
def test_metadata_tells_before_any_import(kind: str, broken: Site) -> None:
    catalog, fault = broken.catalog(), FAULTS[kind]
    (provider,) = catalog.providers_of(architecture(kind))
    assert provider.distribution == plugin(kind)
    assert provider.state in (ProviderState.BROKEN, ProviderState.SKIPPED)
    assert [reason.code for reason in provider.reasons] == [fault.code]
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(catalog, [architecture(kind), "zqgoodForCausalLM"])
    assert provider.reasons[0].fix and provider.reasons[0].fix in str(caught.value)
    assert plugin(kind) in str(caught.value) and fault.words in str(caught.value)
    assert not any(name.startswith("zq") for name in sys.modules)


@each_fault("import")
def test_import_tells_when_the_architecture_is_asked_for(kind: str, broken: Site) -> None:
    catalog, fault = broken.catalog(), FAULTS[kind]
    (provider,) = catalog.providers_of(architecture(kind))
    assert provider.state is ProviderState.READY
    with pytest.raises(PluginLoadError) as caught:
        resolve_from(catalog, [architecture(kind), "zqgoodForCausalLM"])
    assert not isinstance(caught.value, MissingDependency)
    assert (caught.value.code, caught.value.distribution) == (fault.code, f"{plugin(kind)} 1.0")
    assert fault.words in str(caught.value)
    assert caught.value.fix and caught.value.fix in str(caught.value)
    assert "zqgood" not in sys.modules


@each_fault("hook")
def test_hook_tells_when_nobody_else_has_an_answer(kind: str, broken: Site) -> None:
    catalog = broken.catalog()
    assert resolve_from(catalog, architecture(kind)).__module__ == f"{plugin(kind)}.model"
    assert f"{plugin(kind)}.hooks" not in sys.modules
    with pytest.raises(UnknownArchitectureError) as caught:
        resolve_from(catalog, "ZqNobody")
    assert f"considered: {plugin(kind)} 1.0: " in str(caught.value)
    assert FAULTS[kind].words in str(caught.value)


@each_fault("remark")
def test_what_is_only_worth_a_remark_is_served(kind: str, broken: Site) -> None:
    heavy = {"torch"} - set(sys.modules)
    found = resolve_from(broken.catalog(), [architecture(kind), "zqgoodForCausalLM"])
    assert found.__module__ == f"{plugin(kind)}.model"
    assert not heavy & set(sys.modules)


# --- the command line: all of them at once


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All twenty beside one sound plugin, and one whose import kills the interpreter."""
    site = Site(tmp_path_factory.mktemp("crowd") / "site")
    for kind in FAULTS:
        install(site, kind)
    module("import os\nos._exit(7)\n")(site, "zqbad_dies")
    install_good(site)
    return site


def command(site: Site, *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of a command in the crowd; what else is installed is left out."""
    own = [folder.name.partition("-")[0] for folder in site.folder.glob("*.dist-info")]
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("ARCHZOO_", "SGLANG_"))}
    places = (str(site.folder / FIRST), str(site.folder), keep.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, places))
    done = subprocess.run(
        [sys.executable, "-m", "archzoo", *arguments, "--json"],
        env={**keep, "PYTHONPATH": path, "ARCHZOO_PLUGINS": ",".join(own)},
        capture_output=True, text=True, timeout=HANGING,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def entries(crowd: Site) -> dict[str, dict[str, Any]]:
    """What ``doctor --probe`` says, by name of the claim."""
    code, told = command(crowd, "doctor", "--probe", "--probe-timeout", str(HANGING))
    assert code == 1
    return {each["architecture"]: each for each in told["providers"]}


@pytest.fixture(scope="module")
def listed(crowd: Site) -> dict[str, dict[str, Any]]:
    """What ``list`` says, by architecture."""
    code, told = command(crowd, "list")
    assert code == 0
    return {each["architecture"]: each for each in told["providers"]}


@pytest.mark.parametrize("kind", FAULTS)
def test_list_tells_what_metadata_tells(kind: str, listed: dict[str, dict[str, Any]]) -> None:
    entry = listed[architecture(kind)]
    assert entry["distribution"] == plugin(kind)
    expected = [FAULTS[kind].code] if FAULTS[kind].tells == "metadata" else []
    assert [reason["code"] for reason in entry["reasons"]] == expected
    assert (entry["state"] == "ready") is not bool(expected)


@pytest.mark.parametrize("kind", told_by("metadata"))
def test_why_tells_what_metadata_tells(kind: str, crowd: Site) -> None:
    code, told = command(crowd, "why", architecture(kind))
    assert code == 1 and told["verdict"] == "unusable"
    (candidate,) = told["candidates"]
    (reason,) = candidate["reasons"]
    assert candidate["distribution"] == plugin(kind)
    assert Path(candidate["place"]).parent == crowd.folder
    assert reason["code"] == FAULTS[kind].code and reason["fix"]
    assert FAULTS[kind].words in f"{reason['problem']}; {reason['fix']}"


@pytest.mark.parametrize("kind", FAULTS)
def test_doctor_names_the_culprit_and_the_fix(
    kind: str, entries: dict[str, dict[str, Any]]
) -> None:
    fault = FAULTS[kind]
    own_hooks = f"{plugin(kind)}_hooks"
    entry = entries[own_hooks if own_hooks in entries else architecture(kind)]
    assert entry["distribution"] == plugin(kind)
    if fault.tells == "metadata":
        (reason,) = entry["reasons"]
        assert entry["probe"] is None
    else:
        reason = entry["probe"]
    assert reason["code"] == fault.code and bool(reason["fix"]) is bool(fault.code)
    remarks = " ".join(entry["probe"]["remarks"]) if fault.tells == "remark" else ""
    assert fault.words in f"{reason['problem']}; {reason['fix']}; {remarks}"


def test_doctor_measures_the_slow_one(entries: dict[str, dict[str, Any]]) -> None:
    assert entries[architecture("slow")]["probe"]["seconds"] >= 0.8


def test_an_interpreter_that_dies_is_told(entries: dict[str, dict[str, Any]]) -> None:
    probe = entries["zqbad_diesForCausalLM"]["probe"]
    assert probe["ok"] is False and probe["code"] and probe["fix"]
    assert "exit code 7" in probe["problem"]


def test_the_sound_one_is_not_disturbed(
    crowd: Site, listed: dict[str, dict[str, Any]], entries: dict[str, dict[str, Any]]
) -> None:
    assert listed["zqgoodForCausalLM"]["state"] == "ready"
    probe = entries["zqgoodForCausalLM"]["probe"]
    slow = [f"its import takes {probe['seconds']:.0f} s"]  # as it is where a machine is that busy
    assert probe["ok"] is True and probe["remarks"] in ([], slow) and probe["code"] == ""
    code, told = command(crowd, "why", "zqgoodForCausalLM")
    assert code == 0 and told["verdict"] == "served"
