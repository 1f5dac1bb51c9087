"""Updates and exports of gloo processes under torchrun: an error on one is an error on all.

Run as a script, this file is one rank; under pytest the answers of all ranks are compared with
those of one rank here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agents import HANGING
from safetensors.torch import load_file

import archzoo
from archzoo.errors import ArchzooError
from archzoo.parallel.launch import shutdown
from archzoo.weights import IterableSource

IDS = [5, 9, 3, 8, 11]


class FailsOnTheLastRank(IterableSource):
    """One process cannot read a vector, which is not looked at before writing."""

    def read(self, name: str, box: Any) -> torch.Tensor:
        if os.environ.get("RANK", "3") == "3" and name == "model.norm.weight":
            raise OSError("the network went away")
        return super().read(name, box)


def attempt(model: archzoo.Model, *args: Any, **options: Any) -> str:
    """What an update that must fail is said to fail with."""
    try:
        model.update_weights(*args, **options)
    except (ArchzooError, OSError) as error:
        return str(error)
    return "it did not fail"


def answers(folder: Path, topology: dict[str, Any]) -> dict[str, Any]:
    """Every step of a model's life, as plain data and tensors."""
    model = archzoo.load(folder / "a", dtype="float64", kv_slots=64, **topology)
    new = load_file(folder / "b" / "model.safetensors")
    found: dict[str, Any] = {"a": dict(model.export_weights()), "before": model.logits(IDS)}
    norm = {"model.norm.weight": torch.ones(3)}
    found["shape"] = "has shape [3]" in attempt(model, norm)
    source = FailsOnTheLastRank(new.items())
    found["atomic"] = "the network went away" in attempt(
        model, source, atomic=True, check_values=False
    )
    found["undone"] = model.logits(IDS)
    found["failed"] = "the network went away" in attempt(model, source, check_values=False)
    found["spoilt"] = "old and new weights side by side" in attempt(model, {})
    model.update_weights(new, "full")
    found["b"], found["after"] = dict(model.export_weights()), model.logits(IDS)
    return found


def run_rank(folder: Path) -> None:
    """One process of torchrun."""
    found = answers(folder, {"tp": 2, "pp": 2})
    torch.save(found, folder / f"{os.environ['RANK']}.pt")
    shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny import tiny_llama

    folder = tmp_path_factory.mktemp("processes")
    for seed, name in enumerate("ab"):
        tiny_llama(folder / name, seed, tie_word_embeddings=True, num_key_value_heads=2)
    return folder


def test_every_process_does_what_one_rank_does(folder: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [sys.executable, *launch, __file__, str(folder)],
        capture_output=True,
        text=True,
        timeout=HANGING,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = answers(folder, {})
    for rank in range(4):
        found = torch.load(folder / f"{rank}.pt", weights_only=False)
        for name in ("shape", "atomic", "failed", "spoilt"):
            assert found[name] is True, f"rank {rank}: {name}"
        assert torch.equal(found["undone"], found["before"])
        torch.testing.assert_close(found["after"], expected["after"], rtol=0, atol=1e-10)
        for name in ("a", "b"):
            assert found[name].keys() == expected[name].keys()
            for tensor, values in expected[name].items():
                assert torch.equal(found[name][tensor], values), f"rank {rank}: {tensor}"


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
