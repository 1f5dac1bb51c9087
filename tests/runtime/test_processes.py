"""Topologies as gloo processes under torchrun: every process is told what the simulation says.

Run as a script, this file is one rank: it loads every topology, and writes what it was
told; under pytest the answers of all ranks are compared with those of the same ranks simulated.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archzoo
from archzoo.errors import InputError, LogitsError, WeightError
from archzoo.parallel.launch import shutdown
from archzoo.runtime.choosing import Choosable

TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {"tp": 2, "pp": 2},
    {"pp": 4, "pp_layers": (1, 1, 2, 1), "pp_micro_batches": 3},
    {"tp": 4, "plan": "naive"},
    {"tp": 4, "attn_dp": 2},
    {"tp": 4, "attn_dp": 2, "dp_lm_head": True},
    {"tp": 4, "attn_dp": 4},
    {"tp": 2, "pp": 2, "attn_dp": 2},
)
"""Of four processes, which two agents start, as on two hosts; other files have one agent."""
REFUSED: tuple[dict[str, Any], ...] = (
    {"seed": 2**63},
    {"seed": 2**64 - 1},
    {"stop_token_ids": [131]},
    {"stop_token_ids": [5, 2**63]},
    {"temprature": 1.0},
    {"n": 2**63, "best_of": 2},
    {"max_new_tokens": 2**63},
    {"draft_tokens": 2**63},
    {"top_p": 0.0},
)
"""Options of ``generate`` that no topology serves: values that could not be sent among them."""
SPOILT = 77
"""An id whose embedding is NaN in the spoilt checkpoint."""


def answers(folder: Path, topology: dict[str, Any]) -> dict[str, Any]:
    """Everything a model can be asked, as plain data and tensors."""
    model = archzoo.load(folder / "sound", dtype="float64", kv_slots=128, **topology)
    prompts = [[5, 9, 3, 8, 11, 4, 90], [7], [3, 3, 100, 6]]
    drawn = model.generate(prompts, 6, ignore_eos=True, temperature=1.5)
    stream = model.generate(prompts, 3, ignore_eos=True, stream=True)
    found: dict[str, Any] = {
        "prefill": model.logits(prompts),
        "chunked": model.logits(prompts, chunk_size=2),
        "logprobs": model.logprobs(prompts[0], top_k=2, chunk_size=3),
        "vectors": model.embed(prompts),
        "greedy": [one.token_ids for one in model.generate(prompts, 6, ignore_eos=True)],
        "pieces": [(chunk.index, chunk.token_ids, chunk.finish_reason) for chunk in stream],
        "drawn": [one.token_ids for one in drawn],
        "slots": model.engine.free_slots,
        "refused": [refusal(model, options) for options in REFUSED],
        "largest seed": model.generate([5], 4, seed=2**63 - 1, temperature=1.5).token_ids,
    }
    draft = archzoo.load(folder / "head", target=model, tp=4, dtype="float64", kv_slots=128)
    drafted = model.generate(prompts, 6, ignore_eos=True, draft=draft, draft_tokens=2)
    found["drafted"] = [(one.token_ids, one.speculation) for one in drafted]
    found["states"] = [
        state for each in model.forward(prompts, chunk_size=3) for state in each.aux_hidden_states
    ]
    model.engine.choosable = Choosable(range(40, 90), model.config.vocab_size)
    narrow = model.generate(prompts, 4, ignore_eos=True, draft=draft, draft_tokens=2)
    found["narrow"] = [one.token_ids for one in narrow]
    assert all(40 <= token < 90 for one in found["narrow"] for token in one)
    found["left"] = model.engine.free_slots, draft.engine.free_slots
    given: dict[str, Any] = {"check_values": False, **topology}
    spoilt = archzoo.load(folder / "spoilt", dtype="float64", kv_slots=128, **given)
    try:
        spoilt.generate([[5, SPOILT], [5, 6]], 3, ignore_eos=True)
    except LogitsError as error:
        found["error"] = str(error)
    try:
        archzoo.load(folder / "gap", dtype="float64", kv_slots=128, **given)
    except WeightError as gap:
        found["gap"] = str(gap)
    found["after"] = spoilt.generate([5, 6], 3, ignore_eos=True).token_ids
    return found


def refusal(model: archzoo.Model, options: dict[str, Any]) -> str:
    """The message of the error; anything but an InputError of ours is an error here."""
    with pytest.raises(InputError) as caught:
        model.generate([5, 9], **options)
    return str(caught.value)


def run_rank(folder: Path) -> None:
    """One process of torchrun."""
    found = [answers(folder, topology) for topology in TOPOLOGIES]
    torch.save(found, folder / f"{os.environ['RANK']}.pt")
    shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied checkpoint of five layers, a draft of it, one with a NaN, one that lacks a tensor."""
    import eagle3

    from tiny import tiny_llama

    folder = tmp_path_factory.mktemp("processes")
    sizes: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 131}
    tiny_llama(folder / "sound", num_hidden_layers=5, tie_word_embeddings=True, **sizes)
    tiny_llama(folder / "spoilt", num_hidden_layers=5, **sizes)
    file = folder / "spoilt" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["model.embed_tokens.weight"][SPOILT] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    changes = {"vocab_size": 131, "num_attention_heads": 8, "num_key_value_heads": 2}
    changes |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}
    head = eagle3.SIZES | changes
    eagle3.save(folder / "head", head, eagle3.weights(head, embedding=False))
    (folder / "gap").mkdir()
    (folder / "gap/config.json").write_text((folder / "spoilt/config.json").read_text())
    del tensors["model.layers.4.mlp.up_proj.weight"]
    save_file(tensors, folder / "gap/model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def told(folder: Path) -> list[list[dict[str, Any]]]:
    """What each process was told, by rank, then by topology."""
    from agents import run_agents

    for ended in run_agents(folder, [__file__, str(folder)], agents=2, per_agent=2):
        assert ended.code == 0, ended.output
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("at", range(len(TOPOLOGIES)), ids=list(map(str, TOPOLOGIES)))
def test_every_process_is_told_what_the_simulation_says(
    told: list[list[dict[str, Any]]], folder: Path, at: int
) -> None:
    expected = answers(folder, TOPOLOGIES[at])
    for found in told:
        compare(found[at], expected)
        assert found[at]["drawn"] == told[0][at]["drawn"], "a seed of its own on some process"


def test_the_command_says_on_two_agents_what_one_process_says(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """``archzoo generate``: one process of the four speaks; without --tp stages share them out."""
    from agents import run_agents

    from archzoo.cli import main

    command = ["generate", str(folder / "sound"), "--token-ids", "5,9,3", "--ignore-eos"]
    command += ["--max-new-tokens", "6"]
    assert main(command) == 0
    said = capfd.readouterr().out.strip()
    sizes = ["--pp", "2", "--attn-dp", "2"]
    ended = run_agents(tmp_path, ["-m", "archzoo", *command, *sizes], agents=2, per_agent=2)
    assert [each.code for each in ended] == [0, 0], ended
    assert sorted(each.output.count(said) for each in ended) == [0, 1] and said


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [ids for ids, _ in expected["drafted"]] == expected["greedy"]
    assert len(expected["states"]) == 9
    for name in ("prefill", "chunked", "states"):
        for got, want in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    torch.testing.assert_close(found["vectors"], expected["vectors"], rtol=0, atol=1e-9)
    got, want = found["logprobs"], expected["logprobs"]
    assert got.token_logprobs[0] is None
    assert got.token_logprobs[1:] == pytest.approx(want.token_logprobs[1:], abs=1e-9)
    assert [[t for t, _ in each or ()] for each in got.top_logprobs] == [
        [t for t, _ in each or ()] for each in want.top_logprobs
    ]
    for name in (
        "greedy",
        "pieces",
        "slots",
        "after",
        "error",
        "drafted",
        "left",
        "refused",
        "largest seed",
    ):
        assert found[name] == expected[name], name
    assert "request 0 hold NaN" in found["error"]
    assert "model.layers.4.mlp.up_proj.weight" in found["gap"], "told to every process"


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
