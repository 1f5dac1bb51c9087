"""Tensors of single experts: their names, and what is refused by name when one is wrong."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from archzoo.context import BuildContext
from archzoo.errors import CoverageError, WeightError
from archzoo.layers.moe import Experts
from archzoo.models import CausalLM
from archzoo.models.names import name_map
from archzoo.parallel import ExpertShard, Topology
from archzoo.weights import AutoWeightsLoader, NameMap, Rename, Skip, Target
from archzoo.weights.source import TensorInfo

E, D, F = 5, 6, 4
LAYER = "model.layers.3.mlp.experts"
ALONE = Topology()
NAMES = name_map(CausalLM, "hf")


class Model(nn.Module):
    """Experts under their usual path, and nothing else."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        holder = self
        for part in LAYER.split(".")[:-1]:
            child = nn.Module()
            holder.add_module(part, child)
            holder = child
        ctx = BuildContext.of(topology, poison=True)
        holder.experts = Experts(E, D, F, ctx=ctx, prefix=LAYER)


def stored(fused: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    split = {}
    for expert in range(E):
        for name, shape in (("gate_proj", (F, D)), ("up_proj", (F, D)), ("down_proj", (D, F))):
            tensor = torch.randn(shape, generator=generator)
            split[f"{LAYER}.{expert}.{name}.weight"] = tensor
    if not fused:
        return split
    of = {
        name: torch.stack([split[f"{LAYER}.{expert}.{name}.weight"] for expert in range(E)])
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    return {
        f"{LAYER}.gate_up_proj": torch.cat([of["gate_proj"], of["up_proj"]], 1),
        f"{LAYER}.down_proj": of["down_proj"],
    }


def load(tensors: dict[str, Tensor], topology: Topology = ALONE) -> list[Tensor]:
    model = Model(topology)
    report = AutoWeightsLoader(model, name_map=NAMES).load_weights(tensors)
    assert set(report.loaded) == set(tensors)
    experts = model.get_submodule(LAYER)
    return [
        linear.quant_method.plain_values(linear, "weight")
        for linear in (experts.gate_up_proj, experts.down_proj)
    ]


def faults(tensors: dict[str, Tensor], topology: Topology = ALONE) -> CoverageError:
    with pytest.raises(CoverageError) as caught:
        load(tensors, topology)
    return caught.value


@pytest.mark.parametrize("topology", [Topology(), Topology(tp=4, ep=2, rank=3)], ids=["1", "ep2"])
def test_both_ways_of_storing_give_the_same_parameters(topology: Topology) -> None:
    split, fused = load(stored(), topology), load(stored(fused=True), topology)
    for one, other in zip(split, fused, strict=True):
        assert torch.equal(one, other) and not one.isnan().any()
    gate_up, down = stored(fused=True).values()
    half = F // topology.moe_tp
    rows = torch.arange(F).view(-1, half)[topology.rank % topology.moe_tp]
    here = slice(3, 5) if topology.ep == 2 else slice(0, 5)
    assert torch.equal(split[0], gate_up[here][:, torch.cat([rows, rows + F])])
    assert torch.equal(split[1], down[here][:, :, rows])


@pytest.mark.parametrize("topology", [Topology(), Topology(tp=2, ep=2)], ids=["1", "ep2"])
@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
def test_a_missing_tensor_of_one_expert_is_named_on_every_rank(
    name: str, topology: Topology
) -> None:
    for rank in range(topology.world_size):
        tensors = stored()
        del tensors[f"{LAYER}.4.{name}.weight"]
        error = faults(tensors, topology.at(rank))
        assert list(error.report.faults()) == ["partial"]
        assert f"expected {LAYER}.4.{name}.weight" in str(error) and "expert 4" in str(error)


def test_a_missing_expert_is_three_missing_tensors() -> None:
    tensors = {name: each for name, each in stored().items() if f"{LAYER}.2." not in name}
    report = faults(tensors).report
    assert len(report.partial) == 3 and all("expert 2" in str(each) for each in report.partial)


def test_no_experts_at_all() -> None:
    report = faults({}).report
    assert [each.name for each in report.missing] == [
        f"{LAYER}.gate_up_proj.weight",
        f"{LAYER}.down_proj.weight",
    ]
    assert "stored whole" in str(report.missing[0])


@pytest.mark.parametrize("number", ["5", "05", "-1", "x", "١"])
def test_an_expert_too_many(number: str) -> None:
    tensors = stored()
    tensors[f"{LAYER}.{number}.up_proj.weight"] = torch.ones(F, D)
    report = faults(tensors).report
    assert list(report.faults()) == ["unexpected"]
    assert report.unexpected[0].name == f"{LAYER}.{number}.up_proj.weight"


def test_split_and_stacked_at_once_are_one_too_many() -> None:
    report = faults({**stored(), **stored(fused=True)}).report
    assert set(report.faults()) == {"duplicate"}


@pytest.mark.parametrize("topology", [Topology(), Topology(tp=2, ep=2)], ids=["1", "ep2"])
def test_a_wrong_shape_is_seen_on_ranks_that_do_not_hold_the_expert(topology: Topology) -> None:
    tensors = stored()
    name = f"{LAYER}.4.down_proj.weight"
    tensors[name] = tensors[name].t().contiguous()
    for rank in range(topology.world_size):
        report = faults(tensors, topology.at(rank)).report
        assert [each.status for each in report.shape] == ["transposed"]
        assert report.shape[0].name == name


@pytest.mark.parametrize("shape", [(E + 1, 2 * F, D), (E, D, 2 * F), (E, F, D), (E * 2 * F, D)])
def test_stacked_experts_of_another_shape(shape: tuple[int, ...]) -> None:
    tensors = stored(fused=True)
    tensors[f"{LAYER}.gate_up_proj"] = torch.ones(shape)
    assert list(faults(tensors).report.faults()) == ["shape"]


def test_names_lead_there_and_back() -> None:
    parameter = f"{LAYER}.gate_up_proj.weight"
    for expert in (0, 7, 255):
        for part, name in ((0, "gate_proj"), (1, "up_proj")):
            there = NAMES.to_parameter(f"{LAYER}.{expert}.{name}.weight")
            assert there == Target(parameter, ExpertShard(expert, part))
            back = NAMES.to_checkpoint(parameter, ExpertShard(expert, part))
            assert back == f"{LAYER}.{expert}.{name}.weight"
    assert NAMES.to_parameter(f"{LAYER}.down_proj") == Target(f"{LAYER}.down_proj.weight")
    shared = "model.layers.3.mlp.shared_experts.gate_proj.weight"
    assert NAMES.to_parameter(shared) == Target(shared.replace("gate", "gate_up"), 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"stacking": (Rename("**.#.up.*", "**.up.*", 0),)},
        {"experts": (Rename("**.up.*", "**.gate_up.*", 0),)},
        {"renames": ((Rename("a.#.b", "a.b"),),)},
    ],
    ids=["stacking", "experts", "renames"],
)
def test_numbers_belong_to_rules_of_experts(arguments: dict[str, tuple[Rename, ...]]) -> None:
    with pytest.raises(WeightError, match="rules of experts have a '#'"):
        NameMap(**arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("pair", [("**.#.#.up", "**.up"), ("**.up", "**.#.up"), ("a.#", "b.#")])
def test_a_number_taken_out_once_can_be_put_back(pair: tuple[str, str]) -> None:
    with pytest.raises(WeightError, match="wildcards"):
        Rename(*pair)


def test_kinds_of_names_are_answered_as_each_name_would_be() -> None:
    """Looked up once for all numbers; the same as without remembering, whatever the name."""
    words = ["model", "layers", "mlp", "experts", "gate_proj", "up_proj", "weight", "rotary_emb"]
    words += ["0", "7", "10", "007", "{0}", "{", "inv_freq", "1000000000", "self_attn", "k_scale"]
    chance = random.Random(0)
    for _ in range(3000):
        name = ".".join(chance.choices(words, k=chance.randint(1, 7)))
        canonical = NAMES._name(name)[1]
        assert NAMES.rename(name) == canonical
        fresh = name_map(CausalLM, "hf") if chance.random() < 0.01 else NAMES
        found, text = fresh._place(canonical)
        placed = fresh.place(canonical)
        if found is None:
            assert placed == Target(text)
        else:
            assert placed == (found.place(text) if isinstance(found, Rename) else found)


def test_rules_about_one_layer_are_not_taken_for_all() -> None:
    names = NameMap(skips=(Skip("draft", "model.layers.61.**", "of a draft model"),))
    assert names.place("model.layers.60.up.weight") == Target("model.layers.60.up.weight")
    assert names.place("model.layers.61.up.weight") != Target("model.layers.61.up.weight")
    assert names.place("model.layers.62.up.weight") == Target("model.layers.62.up.weight")


def test_names_of_many_experts_are_looked_up_once_for_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    plain = NameMap._place

    def counted(self: NameMap, canonical: str) -> object:
        asked.append(canonical)
        return plain(self, canonical)

    monkeypatch.setattr(NameMap, "_place", counted)
    infos = {
        name.replace("layers.3", f"layers.{layer}").replace("experts.0", f"experts.{expert}"): each
        for name, each in stored().items()
        for layer in range(58)
        for expert in range(64)
        if ".experts.0." in name
    }
    model = Model(Topology())
    headers = {name: TensorInfo(name, tuple(t.shape), t.dtype, "f") for name, t in infos.items()}
    plan = AutoWeightsLoader(model, name_map=NAMES).plan(headers)
    assert len(headers) == 58 * 64 * 3 and len(plan.placements) == E * 3
    assert len(asked) < 20
