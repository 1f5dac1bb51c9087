"""verify: agrees where we are right, and names the layer where we are not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import Run, as_processes
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
)

import archzoo
import archzoo.cli.verify as command
from archzoo.cli.reference import reads_by_itself, reference_model
from archzoo.cli.trace import our_trace, reference_trace
from archzoo.errors import BackendUnavailableError, ConfigError, WeightError
from tiny import SIZES, ids_of, randomise, tiny_llama

STAGES = ["embedding", "layer 0", "layer 1", "layer 2", "final norm", "logits"]


def verdicts(out: str) -> list[tuple[str, str]]:
    """(stage, verdict) of every table row."""
    row = re.compile(r"^\s*(embedding|layer \d+|final norm|logits)\s.*\d\s+(\w[\w ]*?)\s*$", re.M)
    return row.findall(out)


def changed(checkpoint: Path, path: Path, **fields: Any) -> Path:
    """A copy with other fields in its config; those that are None left out."""
    shutil.copytree(checkpoint, path)
    raw = json.loads((path / "config.json").read_text()) | fields
    kept = {key: value for key, value in raw.items() if key not in fields or value is not None}
    (path / "config.json").write_text(json.dumps(kept))
    return path


def test_every_stage_agrees_on_one_and_three_ranks(run: Run, llama: Path) -> None:
    done = run("verify", llama, "--tp", "1,3", "--length", 20)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES * 2]
    assert "tp 1, float32, 20 tokens" in done.out and "tp 3, float32, 20 tokens" in done.out
    assert done.out.count("agrees within 0.0002") == 2
    assert done.out.count("in 20 of 20 rows") == 2


def test_every_stage_agrees_on_pipelines(run: Run, llama: Path) -> None:
    done = run("verify", llama, "--tp", "1,3", "--pp", "2,3", "--length", 20)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES * 4]
    for name in ("tp 1 pp 2", "tp 3 pp 2", "tp 1 pp 3", "tp 3 pp 3"):
        assert f"{name}, float32, 20 tokens" in done.out and f"{name}: agrees" in done.out


@pytest.mark.parametrize("options", [[], ["--dp-lm-head"], ["--plan", "naive"]], ids=str)
def test_every_stage_agrees_on_attention_groups(run: Run, llama: Path, options: list[str]) -> None:
    done = run(
        "verify", llama, "--tp", 6, "--pp", "1,3", "--attn-dp", "2,6", "--length", 7, *options
    )
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES * 4]
    for name in ("tp 6 attn_dp 2", "tp 6 attn_dp 6", "tp 6 pp 3 attn_dp 2", "tp 6 pp 3 attn_dp 6"):
        assert f"{name}, float32, 7 tokens" in done.out and f"{name}: agrees" in done.out


@pytest.mark.parametrize("options", [[], ["--dp-lm-head", "--plan", "naive"]], ids=str)
def test_plan_and_head_reach_the_model(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    asked = []

    def load(path: Path, **given: Any) -> archzoo.Model:
        asked.append((given["plan"], given["dp_lm_head"]))
        return archzoo.load(path, **given)

    monkeypatch.setattr(command, "load", load)
    done = run("verify", llama, "--tp", 2, "--attn-dp", 2, "--length", 3, *options)
    assert done.code == 0, done.out + done.err
    assert asked == [("naive", True) if options else ("cheapest", False)]


def test_processes_of_torchrun_compare_with_one_voice(llama: Path, tmp_path: Path) -> None:
    """And one of them keeps the recording; the others do not even try the place."""
    record = ["--record", str(tmp_path / "kept.safetensors")]
    ends = as_processes(["verify", str(llama), "--tp", "3", "--length", "5", *record], 3)
    assert [each.code for each in ends] == [0, 0, 0], ends
    assert [each.err.count("recorded in") for each in ends] == [1, 0, 0]
    assert verdicts(ends[0].out) == [(stage, "agrees") for stage in STAGES]
    assert [each.out for each in ends[1:]] == ["", ""]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_dtypes(run: Run, llama: Path, dtype: str) -> None:
    done = run("verify", llama, "--tp", 3, "--dtype", dtype, "--token-ids", "4")
    assert done.code == 0, done.out + done.err
    assert f"tp 3, {dtype}, 1 token " in done.out


def test_gguf_and_a_single_file(run: Run, llama: Path, gguf_file: Path) -> None:
    for path in (gguf_file, gguf_file.parent, llama / "model.safetensors"):
        done = run("verify", path, "--tp", "1,3", "--length", 9)
        assert done.code == 0, done.out + done.err
    assert reads_by_itself(llama)
    assert not reads_by_itself(gguf_file) and not reads_by_itself(gguf_file.parent)


def test_a_gguf_reference_holds_the_stored_values(gguf_file: Path, tmp_path: Path) -> None:
    _, source = tiny_llama(tmp_path, seed=3)
    model = reference_model(gguf_file, torch.float32)
    assert model.config._attn_implementation == "eager"
    want, got = source.state_dict(), model.state_dict()
    assert set(want) == set(got)
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_a_tied_head_and_a_head_that_was_stored_all_the_same(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    """config.json says tied, the file holds another head: transformers keeps that head, we do."""
    path = changed(llama, tmp_path / "both", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match="stored head"):
        model = archzoo.load(path)
    want = reference_trace(reference_model(path, torch.float32), [5, 6])
    got = our_trace(model, [5, 6])
    torch.testing.assert_close(got["logits"], want["logits"], rtol=0, atol=2e-4)
    want = reference_trace(reference_model(path / "model.safetensors", torch.float32), [5, 6])
    torch.testing.assert_close(got["logits"], want["logits"], rtol=0, atol=2e-4)


def test_a_backbone_has_no_logits(run: Run, tmp_path: Path) -> None:
    model = LlamaModel(LlamaConfig(**SIZES)).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    done = run("verify", tmp_path, "--length", 7)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES[:-1]]
    assert "largest error of the final norm" in done.out


@pytest.mark.parametrize("single", [False, True], ids=["directory", "file"])
def test_a_backbone_under_the_name_of_its_language_model(
    run: Run, tmp_path: Path, single: bool
) -> None:
    """As Qwen3-Embedding-8B is published."""
    sizes = {**SIZES, "head_dim": 8}
    model = Qwen3Model(Qwen3Config(**sizes, rope_theta=10000.0)).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "plain")
    path = changed(tmp_path / "plain", tmp_path / "named", architectures=["Qwen3ForCausalLM"])
    done = run("verify", path / "model.safetensors" if single else path, "--length", 7)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES[:-1]]


def test_a_headless_language_model_whose_rows_are_pooled(
    run: Run, llama: Path, tmp_path: Path
) -> None:
    path = changed(llama, tmp_path / "pooled", architectures=["LlamaForCausalLM"])
    tensors = load_file(path / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    kinds = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling")]
    modules = [{"path": "1_Pooling" if at else "", "type": k} for at, k in enumerate(kinds)]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    done = run("verify", path, "--length", 7)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES[:-1]]
    (path / "modules.json").write_text(json.dumps([*modules, {"path": "2", "type": "CNN"}]))
    done = run("verify", path, "--length", 7)
    assert done.code == 1 and "'CNN' is not applied to vectors" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "--length=7"),
        ("preflight",),
        ("preflight", "--boundaries"),
        ("generate", "--token-ids=5,6", "--max-new-tokens=2"),
    ],
)
def test_a_block_over_plain_weights_may_be_set_aside(
    run: Run, llama: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    block = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    path = changed(llama, tmp_path / "merged", quantization_config=block)
    refused = run(command[0], path, *command[1:])
    says = "which is not served" if "--boundaries" in command else "all weights are plain"
    assert refused.code == 1 and says in " ".join(refused.err.split())
    done = run(command[0], path, *command[1:], "--quantization=none")
    assert done.code == 0, done.out + done.err


def test_what_transformers_misses_is_named(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**source: Any) -> None:
        raise ImportError("pip install acme")

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", missing)
    done = run("verify", llama, "--length", 5)
    assert done.code == 1 and "unexpected" not in done.err
    said = " ".join(done.err.split())
    assert "a reference from LlamaForCausalLM is not available on this installation" in said
    assert "pip install acme" in said


@pytest.mark.parametrize(
    ("parameter", "stage"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("model.layers.0.input_layernorm.weight", "layer 0"),
        ("model.layers.1.self_attn.o_proj.weight", "layer 1"),
        ("model.layers.2.mlp.down_proj.weight", "layer 2"),
        ("model.norm.weight", "final norm"),
        ("lm_head.weight", "logits"),
    ],
)
@pytest.mark.parametrize("damage", ["one element", "NaN"])
def test_the_first_stage_that_departs_is_named(
    run: Run,
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parameter: str,
    stage: str,
    damage: str,
) -> None:
    shutil.copytree(llama, tmp_path / "damaged")
    tensors = load_file(tmp_path / "damaged" / "model.safetensors")
    # Something that every row uses; of the embedding, the row of id 5, which is in the prompt.
    at = 5 * SIZES["hidden_size"] if "embed" in parameter else 3
    tensors[parameter].view(-1)[at] += float("nan") if damage == "NaN" else 0.05
    save_file(tensors, tmp_path / "damaged" / "model.safetensors", {"format": "pt"})

    def damaged(path: Path, check_values: bool, **options: Any) -> archzoo.Model:
        return archzoo.load(tmp_path / "damaged", check_values=False, **options)

    monkeypatch.setattr(command, "load", damaged)
    done = run("verify", llama, "--token-ids", "5,6,7,8")
    assert done.code == 1
    found = verdicts(done.out)
    at = STAGES.index(stage)
    assert found[at] == (stage, "departs first")
    assert all(verdict == "agrees" for _, verdict in found[:at])
    assert f"tp 1: departs at {stage}" in done.out


def test_a_nan_is_named_by_its_tensor(run: Run, llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "damaged")
    tensors = load_file(tmp_path / "damaged" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][2, 3] = float("nan")
    save_file(tensors, tmp_path / "damaged" / "model.safetensors", {"format": "pt"})
    done = run("verify", tmp_path / "damaged", "--length", 4)
    assert done.code == 1
    assert f"{name}: 1 NaN" in done.err and "at [2, 3]" in done.err


def test_one_topology_that_departs_is_enough(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(model: archzoo.Model, ids: list[int]) -> Any:
        trace = our_trace(model, ids)
        if model.engine.executor.topology.tp == 3:
            trace["layer 1"] = trace["layer 1"] + 1
        return trace

    monkeypatch.setattr(command, "our_trace", trace)
    done = run("verify", llama, "--tp", "3,1", "--length", 4)
    assert done.code == 1
    assert "tp 3: departs at layer 1" in done.out and "tp 1: agrees" in done.out


def test_tolerance_decides(run: Run, llama: Path) -> None:
    assert run("verify", llama, "--length", 5, "--tolerance", "1e-12").code == 1
    assert run("verify", llama, "--length", 5, "--tolerance", "10").code == 0
    assert run("verify", llama, "--tolerance", "-1").code == 2


def test_the_random_prompt_follows_the_seed(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []

    def trace(model: archzoo.Model, ids: list[int]) -> Any:
        seen.append(list(ids))
        return our_trace(model, ids)

    monkeypatch.setattr(command, "our_trace", trace)
    for options in (["--seed", 1], ["--seed", 1], ["--seed", 2]):
        run("verify", llama, "--length", 30, *options)
    assert seen[0] == seen[1] != seen[2]
    assert [len(ids) for ids in seen] == [30] * 3
    assert all(0 <= token < 130 for ids in seen for token in ids)


def test_a_text_prompt(run: Run, chatty: Path, llama: Path) -> None:
    done = run("verify", chatty, "--prompt", "seven b")
    assert done.code == 0 and "float32, 7 tokens" in done.out
    done = run("verify", llama, "--prompt", "text")
    assert done.code == 1 and "no tokenizer" in done.err


@pytest.mark.parametrize("option", ["--pp", "--attn-dp"])
def test_layers_and_rows_of_other_processes_are_refused(
    run: Run,
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    forbid: Callable[[str], None],
    option: str,
) -> None:
    forbid("archzoo.cli.verify.reference_model")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    done = run("verify", llama, "--tp", "2", option, "2")
    assert done.code == 1 and f"{option} 2 under torchrun" in done.err


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--token-ids", "1,500"], 1, "vocabulary of 130"),
        (["--tp", "1,4"], 1, "6 query heads"),
        (["--pp", "2,4"], 1, "pp=4: more pipeline stages than the model's 3 layers"),
        (["--pp", "0"], 2, "--pp"),
        (["--length", "257"], 1, "257 tokens, more than the context of 256"),
        (["--token-ids", "9," * 257], 1, "257 tokens, more than the context of 256"),
        (["--prompt", "a", "--token-ids", "1"], 2, "not both"),
        (["--tp", "0"], 2, "--tp"),
        (["--tp", "2,3", "--attn-dp", "2"], 1, "attn_dp=2 does not divide tp=3"),
        (["--attn-dp", "0"], 2, "--attn-dp"),
        (["--plan", "best"], 2, "--plan"),
        (["--length", "0"], 2, "--length"),
    ],
    ids=str,
)
def test_refused_before_transformers_is_started(
    run: Run,
    llama: Path,
    forbid: Callable[[str], None],
    options: list[str],
    code: int,
    says: str,
) -> None:
    forbid("archzoo.cli.verify.reference_model")
    done = run("verify", llama, *options)
    assert done.code == code and says in done.err and done.out == ""


def test_the_random_prompt_fits_the_context(run: Run, tmp_path: Path) -> None:
    tiny_llama(tmp_path, max_position_embeddings=48)
    done = run("verify", tmp_path)
    assert done.code == 0, done.out + done.err
    assert "float32, 48 tokens" in done.out


def test_weights_of_another_name_are_read_by_us(run: Run, llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "named")
    file = tmp_path / "named" / "model.safetensors"
    file.rename(file.with_name("weights.safetensors"))
    assert not reads_by_itself(file.parent)
    done = run("verify", file.parent, "--length", 5)
    assert done.code == 0, done.out + done.err


def test_shards_are_read_by_transformers(llama: Path, tmp_path: Path) -> None:
    _, source = tiny_llama(tmp_path / "whole")
    source.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    assert reads_by_itself(tmp_path / "shards")
    got = reference_model(tmp_path / "shards", torch.float32).state_dict()
    assert all(torch.equal(got[name], value) for name, value in source.state_dict().items())


def test_gguf_beside_a_config_is_read_by_us(
    llama: Path, gguf_file: Path, run: Run, tmp_path: Path
) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    shutil.copy(gguf_file, tmp_path)
    assert not reads_by_itself(tmp_path)
    done = run("verify", tmp_path, "--length", 5)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("single", [False, True], ids=["directory", "file"])
def test_a_config_without_model_type(run: Run, llama: Path, tmp_path: Path, single: bool) -> None:
    path = changed(llama, tmp_path / "untyped", model_type=None)
    done = run("verify", path / "model.safetensors" if single else path, "--length", 5)
    assert done.code == 0, done.out + done.err


def test_a_lone_architecture_is_refused_as_load_refuses_it(llama: Path, tmp_path: Path) -> None:
    path = changed(llama, tmp_path / "lone", architectures="LlamaForCausalLM")
    for call in (lambda: reference_model(path, torch.float32), lambda: archzoo.load(path)):
        with pytest.raises(ConfigError, match="architectures.*is not a list"):
            call()


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("InternLM3ForCausalLM", "internlm3"), ("IQuestCoderForCausalLM", "iquestcoder")],
)
def test_the_reference_is_chosen_by_model_type(
    run: Run, tmp_path: Path, architecture: str, model_type: str
) -> None:
    """transformers runs these as Llama, under configurations of their own."""
    config = AutoConfig.for_model(model_type, **SIZES, head_dim=8, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "saved")
    path = changed(tmp_path / "saved", tmp_path / "named", architectures=[architecture])
    done = run("verify", path, "--length", 9)
    assert done.code == 0, done.out + done.err
    assert verdicts(done.out) == [(stage, "agrees") for stage in STAGES]


def test_a_configuration_that_the_reference_refuses(tmp_path: Path) -> None:
    config = AutoConfig.for_model("internlm3", **SIZES, head_dim=8)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "saved")
    fields = {"qkv_bias": True, "bias": False, "architectures": ["InternLM3ForCausalLM"]}
    path = changed(tmp_path / "saved", tmp_path / "two", **fields)
    match = r"InternLM3ForCausalLM.*refuses this configuration.*qkv_bias"
    with pytest.raises(BackendUnavailableError, match=match):
        reference_model(path, torch.float32)


@pytest.mark.parametrize("model_type", [None, "zoo"])
def test_a_model_type_that_transformers_does_not_have(
    llama: Path, tmp_path: Path, model_type: str | None
) -> None:
    path = changed(llama, tmp_path / "other", model_type=model_type) / "model.safetensors"
    shutil.move(path, path.with_name("weights.safetensors"))  # which transformers would not read
    model = reference_model(path.with_name("weights.safetensors"), torch.float32)
    assert type(model) is LlamaForCausalLM


def test_an_architecture_transformers_does_not_have(llama: Path, tmp_path: Path) -> None:
    name = "LlamaForSequenceClassificationWithNormal_Weights"
    path = changed(llama, tmp_path / "other", architectures=[name])
    with pytest.raises(BackendUnavailableError, match=rf"{name}.*transformers \d.*no class"):
        reference_model(path, torch.float32)


def test_sizes_that_do_not_go_together_are_left_out_and_named(run: Run, llama: Path) -> None:
    done = run("verify", llama, "--tp", "1,2,3", "--attn-dp", "3,2", "--length", 5)
    assert done.code == 0, done.out + done.err
    assert "tp 3 attn_dp 3: agrees" in done.out and "tp 2 attn_dp 2: agrees" in done.out
    text = " ".join(done.err.split())
    for pair in ("attn_dp=3 does not divide tp=1", "attn_dp=2 does not divide tp=3"):
        assert f"left out: {pair}" in text
    assert done.out.count("agrees within") == 2
    done = run("verify", llama, "--tp", "3", "--attn-dp", "2")
    assert done.code == 1 and "attn_dp=2 does not divide tp=3" in done.err


def test_weights_that_transformers_would_make_up(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "gap")
    file = tmp_path / "gap" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    for path in (file.parent, file):
        with pytest.raises(WeightError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
            reference_model(path, torch.float32)


def test_traces_leave_no_hooks_and_change_nothing(llama: Path) -> None:
    model = archzoo.load(llama, tp=3, dtype="float32")
    ids = ids_of(6)
    before = model.logits(ids)
    trace = our_trace(model, ids)
    assert list(trace) == STAGES
    assert all(rows.shape[0] == 6 for rows in trace.values())
    hooked = [m for r in model.engine.runners for m in r.module.modules() if m._forward_hooks]
    assert hooked == []
    torch.testing.assert_close(model.logits(ids), before, rtol=0, atol=0)
