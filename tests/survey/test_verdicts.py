"""Preflight and load say the same of the same files: fault by fault, and refusal by refusal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from survey.checkpoints import CONFIGS, Tensors, tensors, write

import archzoo
from archzoo.errors import ArchzooError, CoverageError
from archzoo.weights import Fault

TOPOLOGIES: dict[str, list[dict[str, Any]]] = {
    "dense": [{}, {"tp": 2, "attn_dp": 2, "pp": 2, "pp_layers": (4, 1)}],
    "experts": [{"tp": 2, "ep": 2}, {"tp": 2, "attn_dp": 2, "ep": 2, "pp": 2, "pp_layers": (1, 2)}],
}
Verdict = set[tuple[str, str, str]] | str
"""Kind, name and status of each fault; none for a good checkpoint; or the refusal in full."""


def told(faults: Mapping[str, Iterable[Fault]]) -> Verdict:
    return {(kind, each.name, each.status) for kind, found in faults.items() for each in found}


def of_load(path: Path, **options: Any) -> Verdict:
    try:
        archzoo.load(path, **options)
    except CoverageError as error:
        return told(error.report.faults())
    except ArchzooError as error:
        return str(error)
    return set()


def of_preflight(path: Path, **options: Any) -> Verdict:
    try:
        return told(archzoo.preflight(path, **options).faults())
    except ArchzooError as error:
        return str(error)


def delete(found: Tensors, name: str) -> None:
    del found[name]


def truncate(found: Tensors, name: str) -> None:
    found[name] = found[name][:-1]


def transpose(found: Tensors, name: str) -> None:
    found[name] = found[name].t().contiguous()


def to_integer(found: Tensors, name: str) -> None:
    found[name] = found[name].to(torch.int8)


def to_eight_bits(found: Tensors, name: str) -> None:
    found[name] = found[name].to(torch.float8_e4m3fn)


def add_scale(found: Tensors, name: str) -> None:
    found[f"{name}_scale"] = found[name][:, 0].clone()


def add_layer(found: Tensors, name: str) -> None:
    found[name.replace("layers.1.", "layers.7.")] = found[name].clone()


def misspell(found: Tensors, name: str) -> None:
    found[name.replace("_proj", "_porj")] = found.pop(name)


FAULTS = [delete, truncate, transpose, to_integer, to_eight_bits, add_scale, add_layer, misspell]
NAMES = {
    "dense": "model.layers.1.self_attn.k_proj.weight",
    "experts": "model.layers.1.mlp.experts.3.up_proj.weight",
}


@pytest.mark.parametrize("change", FAULTS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_fault_of_a_tensor(
    tmp_path: Path, kind: str, change: Callable[[Tensors, str], None]
) -> None:
    found = tensors(kind)
    change(found, NAMES[kind])
    folder = write(tmp_path, kind, found)
    for options in TOPOLOGIES[kind]:
        verdict = of_load(folder, **options)
        assert verdict and isinstance(verdict, set)
        assert of_preflight(folder, **options) == verdict


@pytest.mark.parametrize("kind", CONFIGS)
def test_no_fault(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind, tensors(kind))
    for options in TOPOLOGIES[kind]:
        assert of_load(folder, **options) == of_preflight(folder, **options) == set()


@pytest.mark.parametrize(
    "options",
    [{"tp": 4}, {"ep": 2}, {"tp": 2, "ep": 2}, {"tp": 2, "attn_dp": 3}, {"pp": 6}, {"tp": 0},
     {"pp_layers": (4,)}, {"pp": 2, "pp_layers": (1, 1)}, {"pp": 2, "pp_layers": (0, 5)},
     {"dtype": "int8"}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked_for(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write(tmp_path, "dense", tensors("dense"))
    verdict = of_load(folder, **options)
    assert verdict and isinstance(verdict, str)
    assert of_preflight(folder, **options) == verdict


@pytest.mark.parametrize(
    "changes",
    [{"quantization_config": {"quant_method": "fp8"}}, {"quantization_config": {}},
     {"architectures": ["NobodyForCausalLM"]}, {"num_experts_per_tok": 5}, {"dtype": "int8"}],
    ids=str,
)  # fmt: skip
def test_configs_that_are_not_served(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write(tmp_path, "experts", tensors("experts"), **changes)
    for options in TOPOLOGIES["experts"]:
        verdict = of_load(folder, **options)
        assert verdict and isinstance(verdict, str)
        assert of_preflight(folder, **options) == verdict


@pytest.mark.parametrize("name", ["p.bin", "p.txt", "copy.weights", "none.safetensors", "a" * 300])
def test_files_of_another_kind(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, "dense", tensors("dense"))
    if not name.startswith(("none", "aa")):
        shutil.copy(folder / "model.safetensors", folder / name)
    verdict = of_load(folder / name)
    assert verdict and isinstance(verdict, str)
    assert of_preflight(folder / name) == verdict
