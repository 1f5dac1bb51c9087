"""Preflight of the headers of very large models on 32 ranks: work is counted, not timed."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import archzoo
from archzoo.models import DecoderBase
from archzoo.weights import NameMap
from archzoo.weights.plan import Planner

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "headers.py"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headers_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of what should be done once for everything that is alike."""
    calls: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, wrapped)

    count(Planner, "_lay_out")
    count(NameMap, "_place")
    count(DecoderBase, "__init__")
    return calls


def test_405b_on_32_ranks(tmp_path: Path, counted: Counter[str]) -> None:
    headers = generator()
    headers.write_headers(tmp_path, headers.LLAMA_405B, headers.FILES_405B)
    assert len(list(tmp_path.glob("*.safetensors"))) == 191
    report = archzoo.preflight(tmp_path, tp=8, pp=4, memory=80 << 30)
    assert report.ok and report.fits
    assert len(report.tensors) == 1137 and len(report.ranks) == 32
    total = sum(place.stop - place.start for place in report.places.values())
    assert total == 811_706_777_600  # 405,853,388,800 parameters in bfloat16
    # Every rank is built; every parameter of a rank is a case of one of the kinds below.
    assert counted["__init__"] == 32
    kinds_cut, kinds_whole, kinds_at_the_ends = 4, 1, 2
    assert counted["_lay_out"] == 8 * (kinds_cut + kinds_at_the_ends - 1) + kinds_whole
    assert counted["_place"] == 9 + 3
    layers = [len(rank.layers) for rank in report.ranks[::8]]
    assert layers == [31, 32, 32, 31]
    per_rank = [rank.memory.kv_per_token for rank in report.ranks[::8]]
    assert per_rank == [count * 1 * 2 * 128 * 2 for count in layers]


def test_one_damaged_tensor_of_1137_is_found_on_the_ranks_of_its_stage(tmp_path: Path) -> None:
    headers = generator()
    headers.write_headers(tmp_path, headers.LLAMA_405B, headers.FILES_405B)
    for path in tmp_path.glob("*.safetensors"):
        content = path.read_bytes()
        name = b"model.layers.77.self_attn.v_proj.weight"
        if name in content:
            path.write_bytes(content.replace(name, name.replace(b"v_proj", b"w_proj")))
    (tmp_path / "model.safetensors.index.json").unlink()
    report = archzoo.preflight(tmp_path, tp=2, pp=4)
    found = {(fault.kind, fault.name, fault.ranks) for fault in report.found}
    stage = (4, 5)
    assert found == {
        ("partial", "model.layers.77.self_attn.qkv_proj.weight", stage),
        ("unexpected", "model.layers.77.self_attn.w_proj.weight", stage),
    }


def test_671b_of_experts_on_32_ranks_with_one_expert_missing(
    tmp_path: Path, counted: Counter[str]
) -> None:
    headers = generator()
    headers.write_headers(tmp_path, headers.MOE_671B, headers.FILES_671B)
    absent = "model.layers.40.mlp.experts.200.up_proj.weight"
    without(tmp_path, absent)
    report = archzoo.preflight(tmp_path, tp=8, pp=4, ep=8)
    assert len(report.tensors) == 45_101 and len(report.ranks) == 32
    attention, dense, router, expert, ends = 8, 3, 1, 3, 3
    assert counted["_place"] == attention + dense + router + expert + ends
    (fault,) = report.found
    parameter = "model.layers.40.mlp.experts.gate_up_proj.weight"
    assert (fault.kind, fault.name) == ("partial", parameter)
    assert fault.ranks == tuple(range(16, 24))  # of its stage, whichever holds it
    assert absent in fault.text


def without(folder: Path, name: str) -> None:
    """Take one tensor out of its header and the index; data that is not there moves up."""
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    path = folder / index["weight_map"].pop(name)
    index_file.write_text(json.dumps(index))
    header = json.loads(path.read_bytes()[8:])
    start, stop = header.pop(name)["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] > start:
            entry["data_offsets"] = [at - (stop - start) for at in entry["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
