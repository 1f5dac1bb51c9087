"""Qwen3-MoE beside transformers, on topologies that deal experts out and exchange rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import archzoo
from archzoo.config import ModelConfig
from archzoo.errors import ConfigError, CoverageError, ShapeError, TopologyError
from archzoo.models import GatedMLP, SparseMLP
from archzoo.parallel.launch import shutdown
from archzoo_qwen3.moe import QWEN3_MOE, Qwen3MoeModel

SIZES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
MODELS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "every second": {"mlp_only_layers": [], "decoder_sparse_step": 2, "norm_topk_prob": False},
    "uneven": {"num_experts": 5, "num_experts_per_tok": 5, "tie_word_embeddings": True},
    "biased": {"num_experts": 8, "num_experts_per_tok": 1, "attention_bias": True},
}
PROMPTS = [[5, 9, 3, 8, 11, 4, 90], [7], [3, 3, 100, 6]]
TOKENS = 4
CASES: list[tuple[str, dict[str, Any]]] = [
    ("mixed", {}),
    ("every second", {}),
    ("uneven", {}),
    ("biased", {}),
    ("mixed", {"tp": 2}),
    ("mixed", {"tp": 2, "ep": 2}),
    ("uneven", {"tp": 2, "ep": 2, "pp": 2, "pp_micro_batches": 2}),
    ("every second", {"tp": 4, "ep": 2, "plan": "naive"}),
    ("biased", {"tp": 4, "ep": 4, "pp": 2}),
    ("mixed", {"tp": 8, "ep": 2}),
    ("mixed", {"tp": 2, "attn_dp": 2}),
    ("every second", {"tp": 4, "attn_dp": 2, "pp": 2}),
    ("mixed", {"tp": 2, "attn_dp": 2, "ep": 2}),
    ("mixed", {"tp": 4, "attn_dp": 2, "ep": 2, "dp_lm_head": True}),
    ("biased", {"tp": 4, "attn_dp": 2, "ep": 4}),
    ("uneven", {"tp": 4, "attn_dp": 4, "ep": 4, "plan": "naive"}),
    ("every second", {"tp": 4, "attn_dp": 4, "ep": 2, "pp": 2, "pp_layers": [1, 3]}),
    ("mixed", {"tp": 8, "attn_dp": 4, "ep": 2}),
]
PROCESSES: tuple[dict[str, Any], ...] = (
    {"tp": 4, "ep": 2},
    {"tp": 4, "attn_dp": 2, "ep": 4},
    {"tp": 2, "pp": 2, "attn_dp": 2, "ep": 2},
)
"""Topologies of four processes."""


def named(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(f"{name}{value}" for name, value in case[1].items())])


def tiny(path: Path, variant: str) -> Any:
    """A checkpoint and the reference model."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from tiny import SIZES as SHARED
    from tiny import randomise, save

    changes = {**SHARED, **SIZES, "rope_theta": 10000.0, **MODELS[variant]}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**changes)).eval()
    randomise(model)
    save(model, path)
    return model


Checkpoints = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("moe")

    @cache
    def of(variant: str) -> tuple[Path, Any]:
        path = folder / variant.replace(" ", "-")
        return path, tiny(path, variant)

    return of


def close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-4)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_logits_and_tokens_are_those_of_transformers(
    checkpoints: Checkpoints, case: tuple[str, dict[str, Any]]
) -> None:
    from tiny import reference_logits

    variant, options = case
    path, reference = checkpoints(variant)
    model = archzoo.load(path, kv_slots=128, **options)
    wanted = [reference_logits(reference, ids) for ids in PROMPTS]
    close(model.logits(PROMPTS), wanted)
    close(model.logits(PROMPTS, chunk_size=3), wanted)
    for ids, result in zip(PROMPTS, model.generate(PROMPTS, TOKENS, ignore_eos=True), strict=True):
        text = [*ids, *result.token_ids]
        rows = reference_logits(reference, text[:-1])[-TOKENS:]
        assert rows.argmax(-1).tolist() == result.token_ids


def test_layers_have_experts_where_the_config_says(checkpoints: Checkpoints) -> None:
    model = archzoo.load(checkpoints("mixed")[0])
    kinds = [type(layer.mlp) for layer in model.module.model.layers]
    assert kinds == [SparseMLP, GatedMLP, SparseMLP, SparseMLP]


def test_experts_that_tie_are_chosen_alike_on_every_topology(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Routers that score all experts alike: all tie in every row, and the first ones are taken."""
    path, _ = checkpoints("mixed")
    tensors = {
        name: tensor[:1].repeat(6, 1) if name.endswith("mlp.gate.weight") else tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    alone = archzoo.load(tmp_path).logits(PROMPTS)
    for options in ({"tp": 2, "ep": 2}, {"tp": 4, "attn_dp": 2, "ep": 4}):
        close(archzoo.load(tmp_path, **options).logits(PROMPTS), alone)
    for name in list(tensors):
        if any(f"experts.{last}." in name for last in (3, 4, 5)):
            tensors[name] = torch.full_like(tensors[name], 100.0)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    close(archzoo.load(tmp_path).logits(PROMPTS), alone)


def test_an_expert_that_is_missing_is_refused_by_name(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    path, _ = checkpoints("mixed")
    tensors = load_file(path / "model.safetensors")
    for name in ("gate_proj", "up_proj", "down_proj"):
        del tensors[f"model.layers.2.mlp.experts.5.{name}.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    for options in ({}, {"tp": 2, "ep": 2, "pp": 2}):
        with pytest.raises(CoverageError) as caught:
            archzoo.load(tmp_path, **options)
        for name in ("gate_proj", "up_proj", "down_proj"):
            assert f"expected model.layers.2.mlp.experts.5.{name}.weight" in str(caught.value)


def test_stacked_experts_and_the_old_config_name_load_alike(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """The names that ``transformers`` 5 has in memory, beside ``num_experts`` of the hub."""
    path, reference = checkpoints("mixed")
    state = {name: each.contiguous() for name, each in reference.state_dict().items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in state
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    raw = json.loads((path / "config.json").read_text())
    raw["num_experts"] = raw.pop("num_local_experts")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    options = {"tp": 4, "attn_dp": 2, "ep": 2}
    stacked, split = (archzoo.load(each, **options) for each in (tmp_path, path))
    for one, other in zip(stacked.logits(PROMPTS), split.logits(PROMPTS), strict=True):
        assert torch.equal(one, other)
    names = [name for name, _ in stacked.export_weights()]
    assert "model.layers.0.mlp.experts.gate_up_proj" in names


@pytest.mark.parametrize("options", [{}, {"tp": 4, "attn_dp": 2, "ep": 2}], ids=["1", "ep2"])
def test_weights_come_back_and_can_be_replaced(
    checkpoints: Checkpoints, options: dict[str, Any]
) -> None:
    path, _ = checkpoints("uneven")
    model = archzoo.load(path, **options)
    before = model.logits(PROMPTS)
    exported = {name: tensor.clone() for name, tensor in model.export_weights()}
    stored = load_file(path / "model.safetensors")
    assert set(exported) == set(stored)
    assert all(torch.equal(exported[name], stored[name]) for name in stored)
    experts = {name: each * 1.5 for name, each in stored.items() if ".2.mlp.experts." in name}
    report = model.update_weights(experts)
    assert set(report.parameters) == {
        f"model.layers.2.mlp.experts.{name}.weight" for name in ("gate_up_proj", "down_proj")
    }
    changed = model.logits(PROMPTS)
    assert max((a - b).abs().max().item() for a, b in zip(before, changed, strict=True)) > 1e-2
    one = {name: each for name, each in stored.items() if ".2.mlp.experts.4." in name}
    with pytest.raises(CoverageError, match="expert 0"):
        model.update_weights(one)
    model.update_weights(one, allow_partial_stacks=True)
    model.update_weights({name: stored[name] for name in experts})
    for got, want in zip(model.logits(PROMPTS), before, strict=True):
        assert torch.equal(got, want)


def test_what_does_not_fit_is_refused(checkpoints: Checkpoints) -> None:
    path, _ = checkpoints("mixed")
    with pytest.raises(TopologyError, match="ep=3 does not divide tp=4"):
        archzoo.load(path, tp=4, ep=3)
    with pytest.raises(ShapeError, match=r"model\.layers\.0\.mlp\.experts: num_experts=6 .*ep=8"):
        archzoo.load(path, tp=8, ep=8)


def test_a_backbone_saved_under_the_name_of_its_language_model(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    path, reference = checkpoints("mixed")
    reference.model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    loaded = archzoo.load(tmp_path, tp=4, attn_dp=2, ep=2)
    assert type(loaded.module) is Qwen3MoeModel and Qwen3MoeModel.adapter is QWEN3_MOE
    with torch.no_grad():
        rows = [reference.model(torch.tensor([ids]))[0][0, -1] for ids in PROMPTS]
    got = loaded.embed(PROMPTS, normalize=False)
    torch.testing.assert_close(got, torch.stack(rows), rtol=0, atol=1e-5)


def test_defaults_are_those_of_transformers() -> None:
    """But for the rotary base, as in the dense family."""
    from transformers import Qwen3MoeConfig

    theirs = Qwen3MoeConfig()
    ours = ModelConfig.from_dict(
        {
            name: getattr(theirs, name)
            for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        }
        | {"num_attention_heads": theirs.num_attention_heads},
        QWEN3_MOE,
    )
    assert ours.moe is not None and ours.moe.sparse_layers == (True,) * theirs.num_hidden_layers
    assert ours.moe.num_experts == theirs.num_experts
    assert ours.moe.num_experts_per_tok == theirs.num_experts_per_tok
    assert ours.moe.intermediate_size == theirs.moe_intermediate_size
    assert ours.moe.norm_topk_prob == theirs.norm_topk_prob
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == theirs.hidden_size // theirs.num_attention_heads
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert (ours.attention_bias, ours.o_proj_bias, ours.mlp_bias) == (False,) * 3
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert set(ours.sliding_windows) == {None}
    assert (ours.bos_token_id, ours.eos_token_ids) == (None, ())


def test_a_window_is_everywhere_or_nowhere() -> None:
    raw = {
        **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
        **{"num_attention_heads": 4, "sliding_window": 16, "max_window_layers": 2},
    }
    windows = [
        ModelConfig.from_dict({**raw, "use_sliding_window": on}, QWEN3_MOE).sliding_windows
        for on in (False, True)
    ]
    assert windows == [(None,) * 3, (16,) * 3]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ConfigError, match="applies to every layer"):
        ModelConfig.from_dict({**raw, "use_sliding_window": True, "layer_types": kinds}, QWEN3_MOE)


def test_commands_deal_experts_out(
    checkpoints: Checkpoints, capfd: pytest.CaptureFixture[str]
) -> None:
    from archzoo.cli import main

    path, ids = str(checkpoints("mixed")[0]), ["--token-ids", "5,9,3"]
    command = ["generate", path, *ids, "--ignore-eos", "--max-new-tokens", "3"]
    assert main(command) == 0
    alone = capfd.readouterr().out
    assert main([*command, "--tp", "2", "--ep", "2"]) == 0
    assert capfd.readouterr().out == alone != ""
    assert main(["verify", path, *ids, "--tp", "2", "--ep", "1,2"]) == 0
    assert "tp 2 ep 2: agrees" in capfd.readouterr().out
    sizes = ["--tp", "4", "--ep", "2", "--attn-dp", "2"]
    assert main(["preflight", path, "--boundaries", *sizes]) == 0
    assert "experts ep 2 x moe_tp 2" in capfd.readouterr().out
    assert main(["preflight", path, "--boundaries", "--tp", "8", "--ep", "8"]) == 1
    assert "num_experts=6 cannot be dealt" in capfd.readouterr().err.replace("\n", " ")


def answers(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    model = archzoo.load(path, dtype="float64", kv_slots=128, **options)
    greedy = model.generate(PROMPTS, TOKENS, ignore_eos=True)
    return {
        "prefill": model.logits(PROMPTS),
        "chunked": model.logits(PROMPTS, chunk_size=2),
        "greedy": [each.token_ids for each in greedy],
    }


def run_rank(path: Path, folder: Path) -> None:
    """One process of torchrun."""
    found = [answers(path, options) for options in PROCESSES]
    torch.save(found, folder / f"{os.environ['RANK']}.pt")
    shutdown()


def test_every_process_is_told_what_the_simulation_says(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    from agents import run_agents

    path, _ = checkpoints("mixed")
    script = [__file__, str(path), str(tmp_path)]
    for ended in run_agents(tmp_path, script, agents=1, per_agent=4):
        assert ended.code == 0, ended.output
    told = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    for at, options in enumerate(PROCESSES):
        wanted = answers(path, options)
        for found in told:
            assert found[at]["greedy"] == wanted["greedy"]
            for name in ("prefill", "chunked"):
                for got, want in zip(found[at][name], wanted[name], strict=True):
                    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), Path(sys.argv[2]))
