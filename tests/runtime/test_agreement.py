"""Processes of one job compare what they would resolve before anything is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from agents import HANGING
from registry.sites import Site

from archzoo.errors import CapacityError, RegistryError, UnknownArchitectureError, WeightError
from archzoo.registry import facts, fingerprint, resolve
from archzoo.runtime.agreement import check_same_catalog, load_together
from archzoo.runtime.executor import SingleExecutor
from tiny import tiny_llama

SCRIPT = """
import json, os, sys, warnings
rank = int(os.environ["RANK"])
warnings.simplefilter("ignore")
os.environ.update(json.loads(sys.argv[2])[rank])
import torch, archzoo
from archzoo.errors import RegistryError, TopologyError, UnknownArchitectureError
from archzoo.parallel.launch import shutdown
try:
    options = json.loads(sys.argv[4])[rank]
    costs = options.pop("link", None)
    if costs:
        from archzoo.parallel.links import LINKS, CostTable
        options["costs"] = CostTable(LINKS[costs])
    path = sys.argv[1] + options.pop("path", "")
    model = archzoo.load(path, dtype=torch.float32, tp=2, **options)
    text = f"tokens {model.generate([5, 6], max_new_tokens=3, ignore_eos=True).token_ids}"
except (RegistryError, TopologyError) as error:
    text = f"refused {error}"
open(f"{sys.argv[3]}/{rank}", "w").write(text)
shutdown()
"""


class OtherProcess(SingleExecutor):
    """An executor with a second process that says what it is told to."""

    def __init__(self, *theirs: list[str]) -> None:
        super().__init__()
        self.theirs = list(theirs)

    @property
    def processes(self) -> int:
        return 2

    def everyones(self, texts: list[str]) -> list[list[str]]:  # type: ignore[override]  # list in a test
        return [list(texts), self.theirs.pop(0)]


def launch(
    path: Path,
    out: Path,
    changes: list[dict[str, str]],
    options: list[dict[str, object]] | None = None,
) -> list[str]:
    """Two real processes with variables and arguments of their own; what each of them ends with."""
    out.mkdir()
    (out / "script.py").write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(out / "script.py"), str(path), json.dumps(changes), str(out)]
    command.append(json.dumps(options or [{}, {}]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(out / str(rank)).read_text() for rank in range(2)]


def test_equal_processes_go_on_and_different_ones_are_refused(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=2)
    same = launch(path, tmp_path / "same", [{}, {}])
    assert same[0] == same[1] and same[0].startswith("tokens ")
    other = {"ARCHZOO_DISABLED_MODEL_ARCHS": "MistralForCausalLM"}
    for text in launch(path, tmp_path / "different", [{}, other]):
        assert text.startswith("refused rank 1 resolves models differently from rank 0")
        assert "only there: disabled MistralForCausalLM" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": "naive"}, "only there: plan='naive'"),
        ({"max_requests": 3}, "missing there: max_requests=64; only there: max_requests=3"),
        ({"path": "-other"}, "missing there: rms_norm_eps=1e-05"),
    ],
    ids=["plan", "limit", "config"],
)
def test_ranks_that_would_run_another_model_are_refused(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    path, _ = tiny_llama(tmp_path / "model", **heads)
    tiny_llama(tmp_path / "model-other", rms_norm_eps=1e-6, **heads)
    for text in launch(path, tmp_path / "out", [{}, {}], [{}, options]):
        assert text.startswith("refused rank 1 would run another model than rank 0"), text
        assert said in text and "same checkpoint and arguments" in text


def test_costs_of_rank_0_are_everyones(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=2)
    same = launch(path, tmp_path / "out", [{}, {}], [{"link": "pcie"}, {"link": "gloo"}])
    assert same[0] == same[1] and same[0].startswith("tokens ")


def test_one_process_agrees_with_itself(tmp_path: Path) -> None:
    check_same_catalog(Site(tmp_path).catalog(), SingleExecutor())


def test_a_version_that_differs_is_named(tmp_path: Path) -> None:
    site, other_site = Site(tmp_path / "site"), Site(tmp_path / "other")
    site.install("zoo-foo", {"FooForCausalLM": "foo:Foo"}, version="1.0")
    other_site.install("zoo-foo", {"FooForCausalLM": "foo:Foo"}, version="1.1")
    ours, theirs = site.catalog(), other_site.catalog()
    executor = OtherProcess([fingerprint(theirs)], list(facts(theirs)))
    with pytest.raises(RegistryError, match="rank 1 resolves") as caught:
        check_same_catalog(ours, executor)
    assert "FooForCausalLM = foo:Foo of zoo-foo 1.0" in str(caught.value)
    assert "FooForCausalLM = foo:Foo of zoo-foo 1.1" in str(caught.value)


def test_a_spawned_process_resolves_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path / "site")
    site.install(
        "zq-spawn", {"ZqSpawnForCausalLM": "zq_spawn:Zq"}, files={"zq_spawn.py": "class Zq: pass\n"}
    )
    monkeypatch.syspath_prepend(str(site.folder))
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(resolve, ("ZqSpawnForCausalLM",)).__module__ == "zq_spawn"
        with pytest.raises(UnknownArchitectureError, match="ZqSpawnForCausalLM") as caught:
            pool.apply(resolve, ("ZqSpawnForCausalL",))
    assert caught.value.near[0] == "ZqSpawnForCausalLM"


def test_a_load_that_fails_elsewhere_fails_here() -> None:
    assert load_together(SingleExecutor(), lambda: 5) == 5
    assert load_together(OtherProcess([""]), lambda: 5) == 5
    with pytest.raises(WeightError, match=r"rank 1 could not load.*CoverageError: two missing"):
        load_together(OtherProcess(["CoverageError: two missing"]), lambda: 5)


def test_a_load_that_fails_here_is_told_and_raised() -> None:
    class Told(OtherProcess):
        def everyones(self, texts: list[str]) -> list[list[str]]:  # type: ignore[override]  # as above
            told.extend(texts)
            return super().everyones(texts)

    told: list[str] = []

    def fail() -> None:
        raise CapacityError("no room")

    with pytest.raises(CapacityError, match="no room"):
        load_together(Told([""]), fail)
    assert told == ["CapacityError: no room"]
