"""Mutations that headers cannot show: verify finds every one against a recording, by its name."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from cli.conftest import Run
from safetensors.torch import load_file, save_file
from same_shape import Mutation, Tensors, every_mutation

import archzoo
from archzoo.cli.comparison import TOLERANCES, compare
from archzoo.cli.fingerprints import digest, fingerprints
from archzoo.cli.recording import Recording, read_recording
from archzoo.cli.trace import our_trace
from archzoo.errors import CoverageError
from tiny import ids_of, tiny_llama

Q, K = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.k_proj.weight"
V, OUT = "model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.o_proj.weight"
GATE, UP = "model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"
NORM = "model.layers.{}.input_layernorm.weight"


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """q and o are square; two KV heads, so that two ranks share nothing."""
    return tiny_llama(
        tmp_path_factory.mktemp("sound"), num_key_value_heads=2, tie_word_embeddings=request.param
    )[0]


@pytest.fixture(scope="module")
def tensors(checkpoint: Path) -> Tensors:
    return load_file(checkpoint / "model.safetensors")


@pytest.fixture(scope="module")
def recording(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``verify --record`` writes it, of our own trace: that it is right is tested elsewhere."""
    file = tmp_path_factory.mktemp("recording") / "sound.safetensors"
    ids = ids_of(12)
    trace = our_trace(archzoo.load(checkpoint, dtype="float32", kv_slots=16), ids)
    Recording(tuple(ids), trace, "the sound checkpoint", fingerprints(checkpoint)).write(file)
    return file


def test_every_swap_and_transpose_departs_at_the_stage_it_is_in(
    checkpoint: Path, tensors: Tensors, recording: Path
) -> None:
    recorded = read_recording(recording)
    model = archzoo.load(checkpoint, dtype="float32", tp=2, kv_slots=16)
    tried: Counter[str] = Counter()
    for mutation in every_mutation(tensors):
        model.update_weights(mutation.of(tensors), mode="full")
        result = compare(our_trace(model, recorded.ids), recorded.trace, TOLERANCES[torch.float32])
        departure = result.first_departure
        assert departure is not None and departure.stage == mutation.stage, mutation
        tried[mutation.status] += 1
    assert tried["transposed"] == 6 and tried["swapped"] >= 15 + 15 + 15 + 3 + 21
    model.update_weights(tensors, mode="full")
    sound = compare(our_trace(model, recorded.ids), recorded.trace, TOLERANCES[torch.float32])
    assert sound.first_departure is None


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation("swapped", (Q.format(0), Q.format(2))),
        Mutation("swapped", (GATE.format(1), UP.format(1))),
        Mutation("swapped", (K.format(2), V.format(2))),
        Mutation("swapped", (NORM.format(1), "model.norm.weight")),
        Mutation("transposed", (Q.format(1),)),
        Mutation("transposed", (OUT.format(0),)),
    ],
    ids=lambda mutation: f"{mutation.status} {mutation.names[0]}",
)
def test_verify_names_the_tensors_and_what_became_of_them(
    run: Run,
    checkpoint: Path,
    tensors: Tensors,
    recording: Path,
    tmp_path: Path,
    mutation: Mutation,
) -> None:
    path = saved(checkpoint, mutation.of(tensors), tmp_path / "mutated")
    done = run("verify", path, "--against", recording, "--tp", "1,2")
    assert done.code == 1 and done.err.count("computed by the sound checkpoint") == 1
    for tp in (1, 2):
        assert f"tp {tp}: departs at {mutation.stage} " in done.out
    lines = [line for line in done.out.splitlines() if line.startswith("model.")]
    one, other = mutation.names[0], mutation.names[-1]
    if mutation.status == "swapped":
        assert sorted(lines) == sorted(
            f"{a}: swapped, it holds what {b} held" for a, b in ((one, other), (other, one))
        )
    else:
        assert lines == [f"{one}: transposed"]


def test_the_unmutated_checkpoint_agrees(run: Run, checkpoint: Path, recording: Path) -> None:
    done = run("verify", checkpoint, "--against", recording, "--tp", "1,2")
    assert done.code == 0 and done.out.count("agrees within 0.0002") == 2
    assert "model." not in done.out


@pytest.mark.parametrize(
    ("bad", "status"),
    [(float("nan"), "NaN"), (float("inf"), "infinite"), (float("-inf"), "infinite")],
)
def test_one_bad_value_in_any_tensor_is_named_with_its_status(
    checkpoint: Path, tensors: Tensors, bad: float, status: str
) -> None:
    model = archzoo.load(checkpoint, dtype="float32", tp=2, kv_slots=16)
    for name, tensor in tensors.items():
        spoilt = tensor.clone()
        spoilt.view(-1)[tensor.numel() * 2 // 3] = bad
        with pytest.raises(CoverageError) as caught:
            model.update_weights({**tensors, name: spoilt}, mode="full", check_values=True)
        found = caught.value.report.value
        assert [(fault.name, fault.status) for fault in found] == [(name, status)]


def test_a_matrix_of_nan_has_a_status_of_its_own_where_few_rows_are_looked_at(
    checkpoint: Path, tensors: Tensors
) -> None:
    model = archzoo.load(checkpoint, dtype="float32", kv_slots=16)
    name = OUT.format(1)
    dead = torch.full_like(tensors[name], torch.nan)
    with pytest.raises(CoverageError) as caught:
        archzoo.load_weights(model.module, {**tensors, name: dead}, check_values=False)
    assert [(f.name, f.status) for f in caught.value.report.value] == [(name, "all NaN")]


def test_other_changes_are_told_apart(
    run: Run, checkpoint: Path, tensors: Tensors, recording: Path, tmp_path: Path
) -> None:
    """Fused where it was split, and one row more than its share; the rest is as it was."""
    parts = [GATE.format(1), UP.format(1)]
    fused = {name: values for name, values in tensors.items() if name not in parts}
    fused["model.layers.1.mlp.gate_up_proj.weight"] = torch.cat([tensors[name] for name in parts])
    fused[V.format(0)] = tensors[V.format(0)] + 0.1
    path = saved(checkpoint, fused, tmp_path / "fused")
    done = run("verify", path, "--against", recording)
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("model.")]
    assert sorted(lines) == [
        "model.layers.0.self_attn.v_proj.weight: changed",
        "model.layers.1.mlp.gate_proj.weight: missing",
        "model.layers.1.mlp.gate_up_proj.weight: added",
        "model.layers.1.mlp.up_proj.weight: missing",
    ]


def test_of_many_changes_a_few_are_listed(
    run: Run, checkpoint: Path, tensors: Tensors, recording: Path, tmp_path: Path
) -> None:
    halved = {name: values / 2 for name, values in tensors.items()}
    done = run("verify", saved(checkpoint, halved, tmp_path / "half"), "--against", recording)
    assert done.code == 1 and done.out.count(": changed") == 8
    assert f"and {len(tensors) - 8} more tensors" in done.out


def test_code_that_computes_otherwise_is_not_the_checkpoints_fault(
    run: Run, checkpoint: Path, recording: Path, tmp_path: Path
) -> None:
    recorded = read_recording(recording)
    trace = {**recorded.trace, "layer 1": recorded.trace["layer 1"] + 1}
    file = tmp_path / "other.safetensors"
    Recording(recorded.ids, trace, "other code", recorded.tensors).write(file)
    done = run("verify", checkpoint, "--against", file)
    assert done.code == 1 and "departs at layer 1" in done.out
    assert "every tensor of the checkpoint is as recorded" in done.out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_a_digest_is_of_the_values_in_their_order(dtype: torch.dtype) -> None:
    values = torch.arange(12).reshape(3, 4).to(dtype)
    assert digest(values) == digest(values.clone())
    assert digest(values.T) == digest(values.T.contiguous()) != digest(values)
    assert digest(torch.zeros(0, 4).to(dtype)) == digest(torch.zeros(0).to(dtype))
    assert digest(values[0, 3]) == digest(values.flatten()[3:4])


def saved(checkpoint: Path, tensors: Tensors, path: Path) -> Path:
    """The checkpoint with other tensors."""
    shutil.copytree(checkpoint, path)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path
