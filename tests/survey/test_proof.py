"""What is worked out once for equal cases is what each rank's own plan says, faults included."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from survey.stated import CONFIG, Shapes, shapes, state

import archzoo
from archzoo.context import BuildContext
from archzoo.errors import CoverageError
from archzoo.models import DecoderBase
from archzoo.parallel import Span, Topology, box_numel, whole
from archzoo.survey import PreflightReport
from archzoo.survey.proof import uncovered
from archzoo.weights import LoadPlan, TensorInfo, open_headers
from archzoo.weights.parameters import ParameterTable
from archzoo_llama.model import LlamaAttention, LlamaForCausalLM

TOPOLOGIES = [
    {}, {"tp": 2}, {"tp": 6}, {"tp": 2, "pp": 3}, {"tp": 2, "pp": 5}, {"tp": 6, "attn_dp": 3},
    {"tp": 2, "attn_dp": 2, "pp": 2, "pp_layers": (4, 1)},
]  # fmt: skip


def brute(folder: Path, report: PreflightReport) -> list[LoadPlan]:
    """Each rank's own plan, with nothing shared."""
    infos = open_headers(folder).infos()
    plans = []
    for rank in range(report.topology.world_size):
        ctx = BuildContext.of(report.topology.at(rank), dtype=report.dtype, device="meta")
        plans.append(LlamaForCausalLM(report.config, ctx).loader().plan(infos))
    return plans


def check(folder: Path, **options: Any) -> PreflightReport:
    """The report, which is what all ranks' own plans say."""
    report = archzoo.preflight(folder, **options)
    plans = brute(folder, report)
    wanted: dict[tuple[str, str, str, str], list[int]] = {}
    for rank, plan in enumerate(plans):
        own = plan.findings.report("", ())
        for kind, faults in own.faults().items():
            for fault in faults:
                wanted.setdefault((kind, fault.name, fault.text, fault.status), []).append(rank)
        fills = report.ranks[rank].fills.values()
        placed = [each for fill in fills for _, each in fill.placements]
        assert sorted(placed, key=repr) == sorted(plan.placements, key=repr)
        assert report.ranks[rank].read_bytes == sum(p.nbytes for p in plan.placements)
        assert {rule: set(names) for rule, names in own.skipped.items()}.items() <= {
            rule: set(names) for rule, names in report.skipped.items()
        }.items()
    found = {
        (fault.kind, fault.name, fault.text, fault.status): list(fault.ranks)
        for fault in report.found
        if fault.kind != "unread"
    }
    assert found == wanted
    return report


@pytest.mark.parametrize("options", TOPOLOGIES, ids=str)
def test_a_whole_checkpoint_fills_every_rank(tmp_path: Path, options: dict[str, Any]) -> None:
    report = check(state(tmp_path, shapes()), **options)
    assert report.ok and not report.faults()
    report.raise_for_faults()
    for rank in report.ranks:
        for fill in rank.fills.values():
            taken = [piece.target for _, pieces in fill.layout.parts for piece in pieces]
            boxes = [*taken, *fill.layout.padding]
            assert not uncovered(whole(fill.layout.shape), boxes)
            assert sum(map(box_numel, boxes)) == box_numel(whole(fill.layout.shape))
    for name, info in report.tensors.items():
        taken = [piece.source for use in report.explain(name).uses for each in use.slices
                 for piece in each.pieces]  # fmt: skip
        assert not uncovered(whole(info.shape), taken), name


# --- faults of one tensor, in one layer ------------------------------------------------------------

Mutated = tuple[Shapes, dict[str, str]]


def delete(found: Shapes, name: str) -> Mutated:
    return {key: shape for key, shape in found.items() if key != name}, {}


def rename(found: Shapes, name: str) -> Mutated:
    return {key.replace(name, f"{name}x"): shape for key, shape in found.items()}, {}


def move(found: Shapes, name: str) -> Mutated:
    other = ".".join("9" if part.isdecimal() else part for part in name.split("."))
    return {(other if key == name else key): shape for key, shape in found.items()}, {}


def truncate(found: Shapes, name: str) -> Mutated:
    return {**found, name: (found[name][0] - 1, *found[name][1:])}, {}


def integer(found: Shapes, name: str) -> Mutated:
    return found, {name: "I8"}


def fuse(found: Shapes, name: str) -> Mutated:
    part = name.split(".")[-2]
    stacked = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}.get(part)
    return {**found, name.replace(part, stacked or part): (7, 7)}, {}


def scale(found: Shapes, name: str) -> Mutated:
    return {**found, f"{name}_scale": found[name][:1]}, {}


@pytest.mark.parametrize("mutation", [delete, rename, move, truncate, integer, fuse, scale])
@pytest.mark.parametrize(
    ("name", "options"),
    [("model.layers.3.self_attn.q_proj.weight", {"tp": 2, "pp": 2}),
     ("model.layers.4.mlp.down_proj.weight", {"tp": 3, "attn_dp": 3}),
     ("model.embed_tokens.weight", {"tp": 2, "pp": 2})],
    ids=str,
)  # fmt: skip
def test_a_fault_of_one_tensor_is_found_on_its_ranks_and_nowhere_else(
    tmp_path: Path, name: str, options: dict[str, Any], mutation: Callable[[Shapes, str], Mutated]
) -> None:
    found, kinds = mutation(shapes(), name)
    changed = (found, kinds) != (shapes(), {})
    folder = state(tmp_path, found, kinds=kinds)
    report = check(folder, **options)
    assert report.ok != changed
    if changed:
        with pytest.raises(CoverageError, match="does not fill the model") as caught:
            report.raise_for_faults()
        assert caught.value.report is report
        assert any(name.rpartition(".")[0] in fault.text for fault in report.found)
        assert not {fault.kind for fault in report.found} & {"unread"}


# --- faults of one rank, or of one layer of one rank -----------------------------------------------


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes layers of some ranks cut their o_proj wrongly."""

    def spoil(change: Callable[[Span], Span], where: Callable[[int, int], bool]) -> None:
        built = LlamaAttention.__init__

        def wrong(self: Any, config: Any, layer_id: int, *, ctx: Any, prefix: str) -> None:
            built(self, config, layer_id, ctx=ctx, prefix=prefix)
            if where(ctx.topology.rank, layer_id):
                cut = self.o_proj.partition
                self.o_proj.partition = replace(cut, inputs=change(cut.inputs))
                self.o_proj.quant_method.create_weights(
                    self.o_proj, self.o_proj.partition, ctx.make
                )

        monkeypatch.setattr(LlamaAttention, "__init__", wrong)

    return spoil


def test_rows_that_no_rank_takes_are_found(tmp_path: Path, spoilt: Callable[..., None]) -> None:
    """Rank 1 takes what rank 0 takes: each parameter is filled once, and half of a layer is lost."""
    spoilt(lambda span: replace(span, start=0), lambda rank, layer: (rank, layer) == (1, 2))
    report = check(state(tmp_path, shapes()), tp=2)
    [fault] = report.found
    assert (fault.kind, fault.status, fault.ranks) == ("unread", "unread", ())
    assert fault.name == "model.layers.2.self_attn.o_proj.weight"
    assert f"no rank takes {24 * 48 // 2} of its elements" in fault.text
    assert "partition" in str(report)


def test_a_part_that_is_not_filled_is_found_on_its_rank(
    tmp_path: Path, spoilt: Callable[..., None]
) -> None:
    spoilt(lambda span: replace(span, offset=1), lambda rank, layer: rank == 4)
    report = check(state(tmp_path, shapes()), tp=6)
    assert {fault.ranks for fault in report.found} == {(4,)}
    assert {fault.kind for fault in report.found} == {"partial"}
    assert len(report.found) == 5
    assert {fault.name for fault in report.found} == {
        f"model.layers.{at}.self_attn.o_proj.weight" for at in range(5)
    }


def test_a_layer_that_every_stage_leaves_to_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors are nobody's, although every stage is whole."""
    known = ParameterTable.elsewhere
    monkeypatch.setattr(
        ParameterTable, "elsewhere", lambda self, name: ".5." in name or known(self, name)
    )
    folder = state(tmp_path, shapes(CONFIG | {"num_hidden_layers": 6}))
    state(tmp_path / "config", {})
    shutil.copy(tmp_path / "config" / "config.json", folder)
    report = check(folder, tp=2, pp=2)
    assert {fault.kind for fault in report.found} == {"unread"}
    assert {fault.name.split(".")[2] for fault in report.found} == {"5"} and len(report.found) == 9


# --- geometry ---------------------------------------------------------------------------------------


def test_what_is_left_of_a_box() -> None:
    box = ((0, 6), (0, 4), (0, 2))
    assert uncovered(box, []) == [box]
    assert uncovered(box, [box]) == [] == uncovered(((0, 0), (0, 4)), [])
    assert uncovered((), [()]) == [] and uncovered((), []) == [()]
    make = torch.Generator().manual_seed(3)
    for _ in range(200):
        cuts = []
        for _ in range(int(torch.randint(0, 5, (1,), generator=make))):
            pairs = [sorted(torch.randint(0, size + 1, (2,), generator=make).tolist())
                     for (_, size) in box]  # fmt: skip
            cuts.append(tuple((a, b) for a, b in pairs))
        left, seen = uncovered(box, cuts), torch.zeros(6, 4, 2, dtype=torch.int64)
        for part in (*left, *cuts):
            region = tuple(slice(a, b) for a, b in part)
            seen[region] = seen[region] + 1 if part in left else seen[region] + 100
        assert ((seen == 1) | (seen >= 100) & (seen % 100 == 0)).all()


def test_reports_pickle(tmp_path: Path) -> None:
    report = archzoo.preflight(state(tmp_path, shapes()), tp=2, pp=2)
    again = pickle.loads(pickle.dumps(report))
    assert again.ranks == report.ranks and again.explain("lm_head.weight")
    assert isinstance(again.tensors["lm_head.weight"], TensorInfo)
    assert issubclass(LlamaForCausalLM, DecoderBase) and isinstance(report.topology, Topology)
