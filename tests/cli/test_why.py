"""why: agrees with resolve about who serves, explains it, imports nothing."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
from cli.conftest import Run
from registry.sites import Site

from archzoo.cli.question import UsageError, read_question
from archzoo.cli.why import answer, as_record, conclusion
from archzoo.cli.why_text import as_text
from archzoo.errors import ArchzooError, CheckpointFileError
from archzoo.registry import Catalog, Group, resolve_from


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("PLUGINS", "STRICT", "PREFER", "EXTERNAL_MODEL_PACKAGE", "DISABLED_MODEL_ARCHS"):
        monkeypatch.delenv(f"ARCHZOO_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    for name in ("wone", "wtwo"):
        site.install(
            name,
            {"SharedForCausalLM": f"{name}:A", f"{name}ForCausalLM": f"{name}:A"},
            files={f"{name}.py": "class A: pass\n"},
        )
    site.install("wlacking", {"LackingForCausalLM": "wlacking:A"}, requires=["zq-nowhere>=2"])
    site.install("wbroken", {"BrokenForCausalLM": "no target"})
    return site


@pytest.mark.parametrize(
    ("name", "settings", "verdict"),
    [
        ("woneForCausalLM", {}, "served"),
        ("SharedForCausalLM", {}, "contested"),
        ("SharedForCausalLM", {"prefer": (("SharedForCausalLM", "wtwo"),)}, "served"),
        ("SharedForCausalLM", {"prefer": (("SharedForCausalLM", "wlacking"),)}, "mischosen"),
        ("woneForCausalLM", {"disabled": frozenset({"woneForCausalLM"})}, "disabled"),
        ("woneForCausalLM", {"plugins": frozenset({"wtwo"})}, "unusable"),
        ("LackingForCausalLM", {}, "unusable"),
        ("BrokenForCausalLM", {}, "unusable"),
        ("NobodyForCausalLM", {}, "unknown"),
        ("woneForCausalLM", {"strict": True}, "served"),
    ],
)
def test_agrees_with_resolve(
    site: Site, name: str, settings: dict[str, object], verdict: str
) -> None:
    catalog = site.catalog(**settings)
    found = answer(read_question(name), catalog)
    record = as_record(found)
    assert record["verdict"] == verdict
    try:
        served = resolve_from(catalog, name)
    except ArchzooError:
        assert not found.served and not record["served"]
        assert "is not served: " in conclusion(found) or settings.get("strict")
    else:
        assert found.served and record["served"]
        assert served.__module__ in conclusion(found)
    last = as_text(found, 500).splitlines()[-1]
    assert last == conclusion(found) == record["conclusion"]
    assert not {"wone", "wtwo"} & (set(sys.modules) - {served.__module__ if found.served else ""})
    for module in ("wone", "wtwo"):
        sys.modules.pop(module, None)


def test_a_refusal_carries_the_fix(site: Site) -> None:
    def said(name: str, **settings: object) -> str:
        return conclusion(answer(read_question(name), site.catalog(**settings)))

    assert said("LackingForCausalLM").endswith("run: pip install 'zq-nowhere>=2'")
    assert "ARCHZOO_PREFER=SharedForCausalLM=wone" in said("SharedForCausalLM")
    disabled = said("woneForCausalLM", disabled=frozenset({"woneForCausalLM"}))
    assert disabled.endswith("remove it from ARCHZOO_DISABLED_MODEL_ARCHS to use it")
    assert said("LlamaForCausalLM").endswith("run: pip install archzoo-llama")
    assert "ARCHZOO_STRICT" in said("woneForCausalLM", strict=True)


def test_near_names_tombstone_and_what_runs_later(site: Site) -> None:
    site.install("whooks", {"one": "whooks.hooks", "two": "whooks:obj"}, group="archzoo.plugins")
    (site.folder / "wcomputed.py").write_text("EntryClass = [c for c in ()]\n")
    catalog = site.catalog(external=("wcomputed",))
    record = as_record(answer(read_question("LlamaForCausalLM"), catalog))
    assert record["tombstone"] == "archzoo-llama"
    hooks = record["run_time"]["hook_plugins"]
    assert [each["architecture"] for each in hooks] == ["one", "two"]
    assert record["run_time"]["modules"] == ["wcomputed"]
    assert as_record(answer(read_question("woneForCausalLn"), catalog))["near"][0] == (
        "woneForCausalLM"
    )
    shown = as_text(answer(read_question("woneForCausalLn"), catalog), 80)
    assert "hooks of whooks 1.0 (whooks:obj) would be asked" in shown
    assert "module wcomputed would be asked" in shown
    served = as_record(answer(read_question("woneForCausalLM"), catalog))
    assert served["run_time"] == {"hook_plugins": [], "modules": []}
    assert not {"whooks", "wcomputed"} & set(sys.modules)


def test_the_choice_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHZOO_PREFER", "SharedForCausalLM=wtwo")
    catalog = Catalog([str(site.folder)])
    found = answer(read_question("SharedForCausalLM"), catalog)
    record = as_record(found)
    assert record["choice"] == "ARCHZOO_PREFER chooses it"
    assert [each["state"] for each in record["candidates"]] == ["overridden", "ready"]
    assert record["variables"] == {"ARCHZOO_PREFER": "SharedForCausalLM=wtwo"}
    assert record["provider"]["place"].endswith("wtwo-1.0.dist-info")
    assert "choice     ARCHZOO_PREFER chooses it" in as_text(found, 80)


def test_other_groups(site: Site) -> None:
    site.install("wquant", {"q4": "wquant:Q"}, group="archzoo.quantization")
    found = answer(read_question("q4"), site.catalog(), Group.QUANTIZATION)
    assert conclusion(found) == "q4 is served by wquant 1.0 (wquant:Q)"


def config(folder: Path, **content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_a_checkpoint_is_asked_by_its_config(site: Site, tmp_path: Path) -> None:
    names = ["NobodyForCausalLM", "woneForCausalLM", "wtwoForCausalLM"]
    folder = config(tmp_path / "model", architectures=names, model_type="wone")
    (folder / "model.safetensors").write_bytes(b"never read")
    for path in (folder, folder / "config.json", folder / "model.safetensors"):
        question = read_question(str(path))
        assert question.names == tuple(names) and question.model_type == "wone"
        assert Path(question.file) == folder / "config.json"
    shown = as_text(answer(question, site.catalog()), 200)
    assert "woneForCausalLM, the first that anyone claims; nobody claims NobodyForCausalLM" in shown
    assert "not looked at: wtwoForCausalLM" in shown


@pytest.mark.parametrize("architectures", [None, []])
def test_a_checkpoint_that_names_nothing(site: Site, tmp_path: Path, architectures: object) -> None:
    folder = config(tmp_path / "model", architectures=architectures, model_type=7)
    found = answer(read_question(str(folder)), site.catalog())
    assert not found.served and '"architectures": ["LlamaForCausalLM"]' in conclusion(found)
    assert "none stated" in as_text(found, 80)


def gguf(path: Path, *entries: tuple[str, int, bytes], count: int | None = None) -> Path:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) if count is None else count)
    for key, kind, value in entries:
        data += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
    path.write_bytes(data)
    return path


def string(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


ARRAY = struct.pack("<IQ", 8, 2) + string(b"a") + string(b"bb")


def test_gguf_states_its_architecture(site: Site, tmp_path: Path) -> None:
    stated = ("general.architecture", 8, string(b"llama"))
    folder = tmp_path / "quantised"
    folder.mkdir()
    path = gguf(folder / "M.GGUF", ("a.list", 9, ARRAY), ("b", 4, b"1234"), stated)
    for asked in (path, folder):
        question = read_question(str(asked))
        assert question.names == ("LlamaForCausalLM",) and question.model_type == "llama"
    gguf(folder / "n.gguf", stated)
    with pytest.raises(CheckpointFileError, match="several GGUF files"):
        read_question(str(folder))
    other = gguf(tmp_path / "o.gguf", ("general.architecture", 8, string(b"mamba")))
    found = answer(read_question(str(other)), site.catalog())
    says = "Nothing is served: 'mamba' is not read from GGUF (read are llama, mistral3, qwen2,"
    assert conclusion(found).startswith(says)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (lambda p: p.write_bytes(b""), "ends in the middle"),
        (lambda p: p.write_bytes(b"GGML" + bytes(40)), "does not begin"),
        (lambda p: gguf(p), "states no general.architecture"),
        (lambda p: gguf(p, count=2**62), "ends in the middle"),
        (lambda p: gguf(p, ("a", 9, struct.pack("<IQ", 8, 2**62))), "ends in the middle"),
        (lambda p: gguf(p, ("a", 9, struct.pack("<IQ", 10, 2**62))), "ends in the middle"),
        (lambda p: gguf(p, ("a", 9, struct.pack("<IQ", 9, 1))), "type 9"),
        (lambda p: gguf(p, ("a", 77, b"")), "type 77"),
        (lambda p: gguf(p, ("a" * 70_000, 4, b"1234")), "name of 70000 bytes"),
    ],
)
def test_hostile_gguf(tmp_path: Path, path: object, said: str) -> None:
    file = tmp_path / "x.gguf"
    path(file)  # type: ignore[operator]  # writes the file
    with pytest.raises(CheckpointFileError, match=said):
        read_question(str(file))


@pytest.mark.parametrize(
    "asked", ["owner/name", "./nowhere", "x.gguf", "config.json", "no name", "", "a\\b", "ä b"]
)
def test_neither_name_nor_path_is_usage(site: Site, asked: str, run: Run) -> None:
    with pytest.raises(UsageError):
        read_question(asked)
    done = run("why", asked)
    assert done.code == 2 and done.out == "" and "LlamaForCausalLM" in done.err


def test_exit_codes(site: Site, tmp_path: Path, run: Run) -> None:
    assert run("why", "woneForCausalLM").code == 0
    done = run("why", "NobodyForCausalLM")
    assert done.code == 1 and done.err == ""
    assert json.loads(run("why", "NobodyForCausalLM", "--json").out)["served"] is False
    (tmp_path / "config.json").write_text("{")
    done = run("why", tmp_path)
    assert done.code == 1 and done.out == "" and done.err.startswith("error: ")
