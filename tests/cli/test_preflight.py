"""preflight: the plan that the loaded model follows, and load's own refusals; from a config alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.screens import LLAMA_70B

import archzoo
from archzoo.cli.options import Link
from archzoo.errors import ArchzooError, ShapeError
from archzoo.parallel.links import TABLES
from archzoo.parallel.rows import GroupRows
from archzoo.planning.plan import digest
from archzoo_llama.model import LlamaAttention

PATH = ("preflight", "--boundaries")


@pytest.fixture
def config(llama: Path, tmp_path: Path) -> Path:
    """A folder with nothing but the configuration."""
    shutil.copy(llama / "config.json", tmp_path)
    return tmp_path


def record(run: Run, *arguments: object) -> dict[str, Any]:
    done = run(*PATH, *arguments, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.parametrize("mode", ["cheapest", "naive"])
@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ({"tp": 3}, (5,)),
        ({"tp": 6, "attn_dp": 2}, (3, 2)),
        ({"tp": 6, "attn_dp": 2, "pp": 3}, (3, 2)),
        ({"tp": 2, "attn_dp": 2}, (3, 2)),
        ({}, (5,)),
    ],
    ids=str,
)
def test_it_is_the_plan_of_the_loaded_model(
    run: Run, llama: Path, config: Path, sizes: dict[str, int], counts: tuple[int, ...], mode: Any
) -> None:
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    found = record(run, config, *options, "--rows=5", f"--plan={mode}", "--link=gloo")
    [batch] = found["batches"]
    model = archzoo.load(llama, **sizes, plan=mode)
    for runner in model.engine.runners:
        book = runner.module.model.stack.book
        assert book.digest == found["digest"]
        rows = book.rows(counts, counts)
        assert rows == GroupRows(
            tuple(batch["rows"]), tuple(batch["held"]), counts, batch["ragged"]
        )
        assert digest((book.of_rows(rows),)) == batch["digest"]


def test_json(run: Run, config: Path) -> None:
    found = record(run, config, "--tp", 6, "--attn-dp", 2, "--rows", "16,4096")
    assert found["topology"] == {"tp": 6, "pp": 1, "attn_dp": 2, "attn_tp": 3, "ep": 1}
    assert (found["layers"], found["hidden_size"], found["dtype"]) == (3, 48, "float32")
    assert (found["plan"], found["link"], found["dp_lm_head"]) == ("cheapest", "nvlink", False)
    assert [sum(batch["rows"]) for batch in found["batches"]] == [16, 4096]
    for batch in found["batches"]:
        stages = batch["stages"]
        assert sorted(at for stage in stages for at in stage["at"]) == list(range(7))
        assert batch["other"]["plan"] == "naive"
        assert 0 < batch["microseconds"] <= batch["other"]["microseconds"]
        sent = [len(s["at"]) * step["bytes"] for s in stages for step in s["steps"]]
        assert batch["bytes"] == sum(sent) > 0
        assert all(
            bool(step["group"]) == bool(step["bytes"]) for s in stages for step in s["steps"]
        )
        assert all(stage["runner_up_microseconds"] > 0 for stage in stages)


def test_the_naive_plan_is_two_all_reduces_for_each_layer(run: Run, config: Path) -> None:
    found = record(run, config, "--tp", 3, "--plan", "naive", "--rows", 3 * 2**18)
    [batch] = found["batches"]
    steps = [step for stage in batch["stages"] for step in stage["steps"] * len(stage["at"])]
    met = [step["step"] for step in steps if step["group"]]
    assert met == ["all_reduce P>R"] * 6
    assert batch["other"]["plan"] == "cheapest"
    assert batch["other"]["microseconds"] < batch["microseconds"]


def test_text_has_the_numbers_of_json(run: Run, config: Path) -> None:
    arguments = (config, "--tp", 3, "--rows", 3 * 2**18)
    found = record(run, *arguments)
    [batch] = found["batches"]
    done = run(*PATH, *arguments)
    assert done.code == 0 and done.err == ""
    assert f"digest      {found['digest']}," in done.out
    for cost in (batch["microseconds"], batch["other"]["microseconds"]):
        assert f"{cost:,.1f} µs and" in done.out
    for stage in batch["stages"]:
        assert f"+{stage['runner_up_microseconds']:,.1f}" in done.out
        assert all(step["step"] in done.out for step in stage["steps"])


def test_the_head_of_each_attention_group_needs_no_other_rows(run: Run, config: Path) -> None:
    sizes = (config, "--tp", 6, "--attn-dp", 2, "--rows", 64)
    for options, gathers in (([], True), (["--dp-lm-head"], False)):
        [batch] = record(run, *sizes, *options)["batches"]
        head = batch["stages"][-1]
        assert head["name"] == "head"
        assert any("all_gather head" in step["step"] for step in head["steps"]) is gathers


def test_links_and_dtypes_change_costs(run: Run, config: Path) -> None:
    assert [link.value for link in Link] == list(TABLES)
    costs = {
        link: record(run, config, "--tp", 3, "--link", link)["batches"][0]["microseconds"]
        for link in TABLES
    }
    assert len(set(costs.values())) == len(TABLES)
    half = record(run, config, "--tp", 3, "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16"
    assert 2 * half["batches"][0]["bytes"] == record(run, config, "--tp", 3)["batches"][0]["bytes"]


def test_every_way_to_name_a_checkpoint(
    run: Run, llama: Path, config: Path, gguf_file: Path
) -> None:
    named = [llama, config, config / "config.json", llama / "model.safetensors"]
    found = [record(run, path, "--tp", 3) | {"path": ""} for path in named]
    assert all(each == found[0] for each in found)
    for path in (gguf_file, gguf_file.parent):
        assert record(run, path, "--tp", 3)["batches"] == found[0]["batches"]


def test_weights_are_not_read(run: Run, llama: Path, forbid: Callable[[str], None]) -> None:
    forbid("archzoo.runtime.checkpoint.open_source")
    assert run(*PATH, llama, "--tp", 3).code == 0


def test_from_the_hub_the_configuration_alone(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repo: str, **options: Any) -> str:
        asked.append((repo, options["allow_patterns"], options["local_files_only"]))
        return str(config)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert run(*PATH, "owner/name", "--offline").code == 0
    assert asked == [("owner/name", ["config.json"], True)]


@pytest.mark.parametrize(
    "sizes",
    [{"tp": 4}, {"tp": 10, "attn_dp": 2, "pp": 2}, {"pp": 4}, {"tp": 3, "attn_dp": 2}],
    ids=str,
)
def test_refusals_are_those_of_load(
    run: Run, llama: Path, config: Path, sizes: dict[str, int]
) -> None:
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    done = run(*PATH, config, *options)
    with pytest.raises(ArchzooError) as refused:
        archzoo.load(llama, **sizes)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"error: {refused.value}\n"


@pytest.mark.parametrize("pp", [1, 3])
def test_layers_of_all_pipeline_stages_are_tried(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch, pp: int
) -> None:
    built = LlamaAttention.__init__

    def build(self: LlamaAttention, config: Any, layer_id: int, **options: Any) -> None:
        if layer_id == 2:
            raise ShapeError("the last layer does not fit")
        built(self, config, layer_id, **options)

    monkeypatch.setattr(LlamaAttention, "__init__", build)
    done = run(*PATH, config, "--pp", pp)
    assert done.code == 1 and "the last layer does not fit" in done.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "NobodyForCausalLM"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"intermediate_size": 71}, "71"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(
    run: Run, config: Path, changes: dict[str, Any], says: str
) -> None:
    file = config / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    done = run(*PATH, config, "--tp", 3)
    assert done.code == 1 and says in done.err and done.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--boundaries", "--rows", "0"], "--rows"),
        (["--boundaries", "--rows", "-1"], "--rows"),
        (["--boundaries", "--rows", ","], "--rows"),
        (["--boundaries", "--tp", "0"], "--tp"),
        (["--boundaries", "--attn-dp", "0"], "--attn-dp"),
        (["--boundaries", "--link", "pigeon"], "--link"),
        (["--boundaries", "--plan", "best"], "--plan"),
        (["--boundaries", "--dtype", "int8"], "--dtype"),
    ],
    ids=str,
)
def test_usage(run: Run, config: Path, arguments: list[str], says: str) -> None:
    done = run("preflight", config, *arguments)
    assert done.code == 2 and done.out == ""
    assert says in " ".join(done.err.replace("│", " ").split())


def test_nowhere(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        done = run(*PATH, path)
        assert done.code == 1 and str(path) in done.err


def test_eighty_layers_on_sixty_four_ranks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    found = record(run, tmp_path, "--tp", 16, "--pp", 4, "--attn-dp", 4, "--rows", "1,100000")
    one, many = found["batches"]
    assert one["rows"] == [1, 0, 0, 0] and sum(many["rows"]) == 100000
    assert many["microseconds"] < many["other"]["microseconds"]
