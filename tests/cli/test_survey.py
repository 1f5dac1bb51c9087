"""preflight without --boundaries: verdict, screens, JSON and exit codes over real and stated files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from survey.checkpoints import tensors, write
from survey.stated import CONFIG, shapes, state

import archzoo


def record(run: Run, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = run("preflight", *arguments, "--json")
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_every_way_to_name_a_checkpoint(run: Run, llama: Path, gguf_file: Path) -> None:
    named = [llama, llama / "config.json", llama / "model.safetensors"]
    found = [record(run, path, "--tp", 3) | {"path": ""} for path in named]
    assert found[0]["ok"] and all(each == found[0] for each in found)
    for path in (gguf_file, gguf_file.parent):
        gguf = record(run, path, "--tp", 3)
        assert gguf["ok"]
        assert [rank["weights"] for rank in gguf["ranks"]] == [
            rank["weights"] for rank in found[0]["ranks"]
        ]


def test_a_gguf_file_beside_a_config(
    run: Run, llama: Path, gguf_file: Path, tmp_path: Path
) -> None:
    """What load opens, preflight opens."""
    shutil.copy(llama / "config.json", tmp_path)
    shutil.copy(gguf_file, tmp_path)
    assert archzoo.load(tmp_path, tp=3).reports
    found = record(run, tmp_path, "--tp", 3)
    assert found["ok"] and found["source"] == f"GGUF file {gguf_file.name}"


def test_weights_are_not_read(run: Run, llama: Path, forbid: Callable[[str], None]) -> None:
    forbid("archzoo.runtime.checkpoint.open_source")
    forbid("archzoo.weights.safetensors_source.SafetensorsSource.read")
    assert run("preflight", llama, "--tp", 3).code == 0


def test_text_has_the_numbers_of_json(run: Run, tmp_path: Path) -> None:
    folder = state(tmp_path, shapes() | {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)})
    arguments = (folder, "--tp", 2, "--pp", 2, "--batch", 3, "--context", 100, "--memory", "1MiB")
    found, done = record(run, *arguments), run("preflight", *arguments)
    assert done.code == 0 and done.err == ""
    assert f"{found['tensors']:,} tensors" in done.out
    held = found["memory"]
    assert (held["batch"], held["context"], held["model_context"]) == (3, 100, 512)
    assert f"{held['most_context']:,} tokens for each of 3 requests" in done.out
    assert "1 by rotary inv_freq" in done.out
    assert found["skipped"]["rotary inv_freq"]["count"] == 1
    assert [rank["layers"] for rank in found["ranks"]] == [[0, 3], [0, 3], [3, 5], [3, 5]]
    assert found["config"]["defaulted"] and found["topology"]["attn_tp"] == 2


def test_sizes_of_all_axes_are_told(run: Run, tmp_path: Path) -> None:
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = {**CONFIG, **experts, "num_hidden_layers": 1}
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    found = {name: shape for name, shape in shapes(config).items() if ".mlp." not in name}
    layer = "model.layers.0"
    found |= {f"{layer}.self_attn.{name}_norm.weight": (8,) for name in "qk"}
    found[f"{layer}.mlp.gate.weight"] = (3, 24)
    for at in range(3):
        sizes = {"gate": (8, 24), "up": (8, 24), "down": (24, 8)}
        found |= {f"{layer}.mlp.experts.{at}.{n}_proj.weight": sizes[n] for n in sizes}
    arguments = [state(tmp_path, found, config), "--tp", 2, "--ep", 2]
    for way in ([], ["--boundaries"]):
        told = record(run, *arguments, *way)["topology"]
        assert told == {"tp": 2, "pp": 1, "attn_dp": 1, "attn_tp": 2, "ep": 2}
        assert "pp 1, experts ep 2 x moe_tp 1" in run("preflight", *arguments, *way).out


def test_a_damaged_checkpoint_is_refused_with_its_faults(run: Run, tmp_path: Path) -> None:
    found = shapes()
    del found["model.layers.3.mlp.up_proj.weight"]
    found["model.norm.weight"] = (23,)
    arguments = (state(tmp_path, found), "--tp", 2, "--pp", 2)
    told = record(run, *arguments, code=1)
    assert not told["ok"]
    assert {(f["kind"], f["status"], tuple(f["ranks"])) for f in told["faults"]} == {
        ("partial", "partial", (2, 3)),
        ("shape", "truncated", (2, 3)),
    }
    done = run("preflight", *arguments)
    assert done.code == 1 and "model.layers.3.mlp.up_proj.weight (ranks 2-3)" in done.out


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--memory", "1GiB"], 0, "fits"),
        (["--memory", "1GiB", "--context", "999999999"], 1, "no room"),
        (["--memory", "1KiB"], 1, "do not hold"),
        (["--memory", "1"], 1, "do not hold"),
    ],
    ids=str,
)
def test_whether_it_fits(
    run: Run, tmp_path: Path, options: list[str], code: int, says: str
) -> None:
    done = run("preflight", state(tmp_path, shapes()), *options)
    assert done.code == code and says in done.out


def test_a_tensor_is_followed_to_its_ranks_and_a_parameter_to_its_file(
    run: Run, llama: Path
) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    arguments = (llama, "--tp", 6, "--pp", 3, "--explain")
    told = record(run, *arguments, name)
    [use] = told["uses"]
    assert (told["kind"], told["fate"], use["part"]) == ("tensor", "written", "k")
    assert use["parameter"] == "model.layers.1.self_attn.qkv_proj.weight"
    start, stop = told["tensor"]["bytes"]
    assert 0 < start < stop <= (llama / "model.safetensors").stat().st_size
    assert sorted(rank for each in use["slices"] for rank in each["ranks"]) == [*range(6, 12)]
    back = record(run, *arguments, use["parameter"])
    assert back["kind"] == "parameter" and use in back["uses"]
    assert {each["part"] for each in back["uses"]} == {"q", "k", "v"}
    done = run("preflight", *arguments, name)
    assert done.code == 0 and f"{start:,} to {stop:,}" in done.out


def test_experts_are_told_by_their_number(run: Run, tmp_path: Path) -> None:
    arguments = (write(tmp_path, "experts", tensors("experts")), "--tp", 6, "--ep", 2)
    assert record(run, *arguments)["topology"]["ep"] == 2
    assert "pp 1, experts ep 2 x moe_tp 3" in run("preflight", *arguments).out
    stack = "model.layers.1.mlp.experts"
    for name, parameter, part, after in (
        (f"{stack}.3.up_proj.weight", f"{stack}.gate_up_proj.weight", 1, ", part 1"),
        (f"{stack}.3.down_proj.weight", f"{stack}.down_proj.weight", None, ""),
    ):
        [use] = record(run, *arguments, "--explain", name)["uses"]
        assert (use["parameter"], use["expert"], use["part"]) == (parameter, 3, part)
        taken = {tuple(each["ranks"]): len(each["pieces"]) for each in use["slices"]}
        assert taken == {(3,): 1, (4,): 1, (5,): 1, (0, 1, 2): 0}
        done = " ".join(run("preflight", *arguments, "--explain", name).out.split())
        assert f"{parameter}, expert 3{after} RANKS" in done


def test_a_tensor_that_is_not_there_is_followed_to_where_it_would_go(
    run: Run, tmp_path: Path
) -> None:
    found = shapes()
    del found["model.layers.3.mlp.up_proj.weight"]
    done = run(
        "preflight", state(tmp_path, found), "--explain", "model.layers.3.mlp.up_proj.weight"
    )
    assert done.code == 1
    assert "would fill shard 1 of model.layers.3.mlp.gate_up_proj.weight" in done.err


def test_names_with_another_fate(run: Run, tmp_path: Path) -> None:
    found = shapes(CONFIG | {"tie_word_embeddings": True})
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = (4,)
    found["model.layers.9.x"] = (4,)
    folder = state(tmp_path, found, CONFIG | {"tie_word_embeddings": True})
    for name, fate, code in (
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "skipped by rotary inv_freq: ", 0),
        ("model.layers.9.x", "refused: extra layer", 1),
        ("lm_head.weight", "tied to model.embed_tokens.weight", 0),
    ):
        done = run("preflight", folder, "--explain", name)
        assert done.code == code and fate in done.out
    done = run("preflight", folder, "--explain", "model.layers.0.self_attn.q_proj.wieght")
    assert done.code == 1 and "did you mean model.layers.0.self_attn.q_proj.weight" in done.err
    done = run("preflight", folder, "--explain-skips")
    assert done.code == 1 and "rotary inv_freq (computed from the config): 1" in done.out
    told = record(run, folder, "--explain-skips", code=1)
    assert told["rotary inv_freq"]["names"] == ["model.layers.0.self_attn.rotary_emb.inv_freq"]


@pytest.mark.parametrize("sizes", [{"tp": 4}, {"pp": 9}, {"tp": 3, "attn_dp": 2}], ids=str)
def test_refusals_are_those_of_load(run: Run, llama: Path, sizes: dict[str, int]) -> None:
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    done = run("preflight", llama, *options)
    with pytest.raises(archzoo.errors.ArchzooError) as refused:
        archzoo.load(llama, **sizes)
    assert (done.code, done.out, done.err) == (1, "", f"error: {refused.value}\n")


def test_what_cannot_be_read(run: Run, tmp_path: Path, llama: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((llama / "config.json").read_bytes())
    done = run("preflight", broken)
    assert done.code == 1 and "no safetensors or GGUF file" in done.err
    content = (llama / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[:-1])
    done = run("preflight", broken)
    assert done.code == 1 and "model.safetensors" in done.err
    done = run("preflight", tmp_path / "nowhere")
    assert done.code == 1 and "nowhere" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "64"], "goes with --boundaries only"),
        (["--link", "nvlink"], "goes with --boundaries only"),
        (["--plan", "naive"], "goes with --boundaries only"),
        (["--boundaries", "--memory", "1GiB"], "goes without --boundaries only"),
        (["--boundaries", "--explain-skips"], "goes without --boundaries only"),
        (["--boundaries", "--explain", "x"], "goes without --boundaries only"),
        (["--boundaries", "--batch", "1"], "goes without --boundaries only"),
        (["--explain", "x", "--explain-skips"], "not both"),
        (["--memory", "much"], "no number of bytes"),
        (["--memory", "0"], "no number of bytes"),
        (["--memory", "-1GiB"], "no number of bytes"),
        (["--memory", "0.1B"], "no number of bytes"),
        (["--batch", "0"], "--batch"),
        (["--context", "0"], "--context"),
    ],
    ids=str,
)
def test_usage(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run("preflight", tmp_path, *arguments)
    assert done.code == 2 and done.out == ""
    assert says in " ".join(done.err.replace("│", " ").split())
