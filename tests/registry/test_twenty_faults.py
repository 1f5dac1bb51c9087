"""Twenty ways in which a plugin can be broken: the others work, and the culprit is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo.errors import MissingDependency, PluginLoadError, RegistryError
from archzoo.registry import resolve_from

BODY = "class A: pass\n"


@dataclass(frozen=True)
class Fault:
    """One way to be broken.

    build: installs the plugin ``zq-bad``, whose architecture is BadForCausalLM.
    code: the reason code that names the fault, in metadata or when it is imported.
    error: what resolve raises; None where the architecture works all the same.
    """

    build: Callable[[Site, str], object]
    code: str
    error: type[Exception] | None = RegistryError
    by_metadata: bool = False


def module(text: str) -> Callable[[Site, str], object]:
    """A plugin whose only module holds a text."""

    def build(site: Site, name: str) -> object:
        target = {f"{name}ForCausalLM": f"{name}.model:A"}
        files = {f"{name}/__init__.py": "", f"{name}/model.py": text.replace("NAME", name)}
        return site.install(name, target, files=files)

    return build


def metadata(**changes: object) -> Callable[[Site, str], object]:
    """A plugin that is sound but for its metadata."""

    def build(site: Site, name: str) -> object:
        extra = "[fla]" if "extras" in changes else ""
        target = {f"{name}ForCausalLM": f"{name}.model:A {extra}"}
        files = {f"{name}/__init__.py": "", f"{name}/model.py": BODY}
        return site.install(name, target, files=files, **changes)  # type: ignore[arg-type]  # test table

    return build


def bad_target(site: Site, name: str) -> None:
    site.install(name, {f"{name}ForCausalLM": "not a target"})


def bad_metadata(site: Site, name: str) -> None:
    info = site.install(name, {f"{name}ForCausalLM": f"{name}:A"})
    (info / "METADATA").write_text("nothing of use\n")


def not_utf8(site: Site, name: str) -> None:
    info = site.install(name, {f"{name}ForCausalLM": f"{name}:A"})
    (info / "METADATA").write_bytes(f"Name: {name}\nVersion: 1.0 \xff\n".encode("latin-1"))


def named_twice(site: Site, name: str) -> None:
    info = site.install(name, {f"{name}ForCausalLM": f"{name}:A"})
    (info / "entry_points.txt").write_text(
        f"[archzoo.models]\n{name}ForCausalLM = {name}:A\n{name}ForCausalLM = {name}:B\n"
    )


def shadowed(site: Site, name: str) -> None:
    site.install(name, {f"{name}ForCausalLM": f"{name}.model:A"})
    first = site.folder.parent / "first" / name
    first.mkdir(parents=True)
    (first / "__init__.py").write_text("")
    own = site.folder / name
    own.mkdir()
    (own / "__init__.py").write_text("")
    (own / "model.py").write_text(BODY)
    (site.info(name) / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/model.py,,\n")


def hooks(text: str) -> Callable[[Site, str], object]:
    """A plugin whose model works and whose hook module holds a text."""

    def build(site: Site, name: str) -> object:
        info = site.install(name, {f"{name}ForCausalLM": f"{name}.model:A"})
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[archzoo.plugins]\n{name}_hooks = {name}.hooks\n")
        folder = site.folder / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "model.py").write_text(BODY)
        (folder / "hooks.py").write_text(f"from archzoo.hooks import hookimpl\n{text}")
        return info

    return build


FAULTS = {
    "syntax": Fault(module("class A(:\n"), "import-failed", PluginLoadError),
    "module": Fault(module("import zq_nowhere\n" + BODY), "import-failed", PluginLoadError),
    "name": Fault(module("class B: pass\n"), "name-missing", PluginLoadError),
    "type": Fault(module("A = 3\n"), "not-a-class", PluginLoadError),
    "raises": Fault(module("raise ValueError('boom 17')\n"), "import-failed", PluginLoadError),
    "exits": Fault(module("raise SystemExit(3)\n"), "import-exited", PluginLoadError),
    "prints": Fault(module("print('hello')\n" + BODY), "", None),
    "slow": Fault(module("import time\ntime.sleep(0.3)\n" + BODY), "", None),
    "circular": Fault(
        module("from NAME.other import B\n" + BODY), "import-failed", PluginLoadError
    ),
    "target": Fault(bad_target, "entry-point-invalid", by_metadata=True),
    "metadata": Fault(bad_metadata, "metadata-invalid", by_metadata=True),
    "notutf8": Fault(not_utf8, "metadata-invalid", by_metadata=True),
    "twice": Fault(named_twice, "entry-point-invalid", by_metadata=True),
    "extra": Fault(
        metadata(requires=["zq-fla>=1; extra == 'fla'"], extras=["fla"]),
        "requirement-missing",
        by_metadata=True,
    ),
    "core": Fault(metadata(requires=["archzoo>=99"]), "core-version", by_metadata=True),
    "file": Fault(
        lambda site, name: site.install(name, {f"{name}ForCausalLM": f"{name}.m:A"}),
        "module-missing",
        PluginLoadError,
    ),  # fmt: skip
    "shadowed": Fault(shadowed, "module-shadowed", PluginLoadError),
    "hooktorch": Fault(
        hooks("import torch\n@hookimpl\ndef archzoo_architectures(): return {}\n"), "", None
    ),
    "hooksignature": Fault(
        hooks("@hookimpl\ndef archzoo_architectures(wrong): return {}\n"), "hook-invalid", None
    ),
    "hookraises": Fault(
        hooks("@hookimpl\ndef archzoo_architectures(): raise OSError('boom 18')\n"),
        "hook-raised",
        None,
    ),
}
REMARKS = {"prints": "prints 1 lines", "hooktorch": "imports torch"}


def plugin(kind: str) -> str:
    return f"zqbad{kind}"


def install(site: Site, kind: str) -> None:
    FAULTS[kind].build(site, plugin(kind))
    if kind == "circular":
        (site.folder / plugin(kind) / "other.py").write_text(
            f"from {plugin(kind)}.model import A\nclass B: pass\n"
        )


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All twenty beside one sound plugin."""
    site = Site(tmp_path_factory.mktemp("crowd") / "site")
    for kind in FAULTS:
        install(site, kind)
    files = {"zqgood.py": BODY}
    site.install("zqgood", {"zqgoodForCausalLM": "zqgood:A"}, files=files)
    return site


def command(site: Site, *arguments: str) -> tuple[int, str]:
    """Run the command line with the crowd first on the path, hidden folder before it."""
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    first = str(site.folder.parent / "first")
    places = (first, str(site.folder), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    done = subprocess.run(
        [sys.executable, "-m", "archzoo", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def examined(crowd: Site) -> dict[str, dict[str, object]]:
    """What ``doctor --probe`` says, by name of the entry."""
    code, out = command(crowd, "doctor", "--probe", "--json")
    assert code == 1
    return {str(each["architecture"]): each for each in json.loads(out)["providers"]}


def test_there_are_twenty() -> None:
    assert len(FAULTS) == 20


@pytest.mark.parametrize("kind", list(FAULTS))
def test_resolve_names_the_fault_and_serves_the_other(
    kind: str, live_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(live_site, kind)
    live_site.install("zqother", {"OtherForCausalLM": "zqother:A"}, files={"zqother.py": BODY})
    monkeypatch.syspath_prepend(str(live_site.folder.parent / "first"))
    catalog = live_site.catalog()
    assert resolve_from(catalog, "OtherForCausalLM").__module__ == "zqother"
    name, fault = f"{plugin(kind)}ForCausalLM", FAULTS[kind]
    if fault.error is None:
        assert resolve_from(catalog, name).__name__ == "A"
        return
    with pytest.raises(fault.error) as caught:
        resolve_from(catalog, name)
    assert not isinstance(caught.value, MissingDependency)
    assert plugin(kind) in str(caught.value)
    if fault.by_metadata:
        (provider,) = catalog.providers_of(name)
        assert fault.code in {reason.code for reason in provider.reasons}
        assert all(reason.fix in str(caught.value) for reason in provider.reasons)
    else:
        assert getattr(caught.value, "code", "") == fault.code
    for folder in (live_site.folder, live_site.folder.parent / "first"):
        for key in [key for key in sys.modules if key.startswith(plugin(kind))]:
            if str(folder) in str(getattr(sys.modules[key], "__file__", "")):
                del sys.modules[key]


@pytest.mark.parametrize("kind", list(FAULTS))
def test_doctor_names_the_culprit_and_the_fix(
    kind: str, examined: dict[str, dict[str, object]]
) -> None:
    fault, name = FAULTS[kind], f"{plugin(kind)}ForCausalLM"
    entry = examined[f"{plugin(kind)}_hooks" if kind.startswith("hook") else name]
    assert entry["distribution"] == plugin(kind)
    if fault.by_metadata:
        codes = {str(reason["code"]): str(reason["fix"]) for reason in entry["reasons"]}  # type: ignore[attr-defined]  # JSON
        assert codes[fault.code]
        return
    probe = entry["probe"]
    assert isinstance(probe, dict)
    assert probe["code"] == fault.code
    assert bool(probe["fix"]) is bool(fault.code)
    assert any(REMARKS.get(kind, "") in remark for remark in [*probe["remarks"], ""])


def test_the_good_one_is_not_disturbed(crowd: Site, examined: dict[str, dict[str, object]]) -> None:
    assert examined["zqgoodForCausalLM"]["probe"]["ok"] is True  # type: ignore[index]  # JSON
    code, out = command(crowd, "list", "--json")
    states = {each["architecture"]: each["state"] for each in json.loads(out)["providers"]}
    assert code == 0 and states["zqgoodForCausalLM"] == "ready"
    code, out = command(crowd, "why", "zqgoodForCausalLM")
    assert code == 0 and "zqgoodForCausalLM is served by zqgood 1.0" in out


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if FAULTS[kind].by_metadata])
def test_why_tells_what_metadata_tells(kind: str, crowd: Site) -> None:
    code, out = command(crowd, "why", f"{plugin(kind)}ForCausalLM", "--json")
    told = json.loads(out)
    assert code == 1 and told["verdict"] == "unusable"
    (candidate,) = told["candidates"]
    assert FAULTS[kind].code in {reason["code"] for reason in candidate["reasons"]}
    assert Path(candidate["place"]).parent == crowd.folder
