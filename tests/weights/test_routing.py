"""Names are read once for all numbers and all ranks: with the same result as one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from archzoo.parallel import Piece, Segment, ShardSpec
from archzoo.weights import STANDARD_SKIPS, NameMap, Rename, Skip, Skipped, Target, TensorInfo
from archzoo.weights.layouts import Layout, Layouts
from archzoo.weights.routing import route
from archzoo.weights.standard_names import (
    STANDARD_EXPERT_MAPPING,
    STANDARD_GATE_UP_MAPPING,
    STANDARD_NESTING,
    STANDARD_QKV_MAPPING,
    STANDARD_SPELLINGS,
)

STANDARD = NameMap(
    (),
    STANDARD_SKIPS,
    STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING,
    STANDARD_SPELLINGS,
    STANDARD_NESTING,
    STANDARD_EXPERT_MAPPING,
)
PARTS = (
    "self_attn.q_proj.weight", "self_attn.k_proj.k_scale", "self_attn.rotary_emb.inv_freq",
    "mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.down_proj.weight_scale_inv", "x%s%d.{}.%",
    "input_layernorm.weight", "a.{}.{}.up_proj.{}",
)  # fmt: skip
NUMBERS = ("0", "7", "07", "123", "٣", "10000000000000000000000")


def names() -> list[str]:
    layers = [f"model.layers.{at}.{part}" for at in NUMBERS for part in PARTS]
    filled = [name.replace("{}", number) for name in layers for number in NUMBERS]
    return [*dict.fromkeys(filled), "lm_head.weight", "0", "1.2", "model.norm.weight", "9.q_proj.1"]


def alone(names: NameMap, name: str) -> tuple[str, Target | Skipped]:
    """What the rules make of a name, whatever they made of others of its kind."""
    _, canonical = names._name(name)
    found, text = names._place(canonical)
    if isinstance(found, Skipped):
        return canonical, found
    return canonical, Target(text) if found is None else found.place(text)


@pytest.mark.parametrize("wrapper", ["", "language_model.", "module."])
def test_every_name_is_read_as_the_rules_read_it_alone(wrapper: str) -> None:
    checkpoint = [f"{wrapper}{name}" for name in names()]
    bound = STANDARD.bound(checkpoint)
    for name in checkpoint:
        assert (bound.rename(name), bound.to_parameter(name)) == alone(bound, name), name


def test_a_rule_about_one_number_holds_for_that_number_only() -> None:
    rules = NameMap(
        ((Rename("layers.0.**", "first.**"),),),
        (Skip("last", "layers.3.**", "unused"),),
        (Rename("**.5.q.*", "**.5.qkv.*", "q"),),
    )
    read = rules.to_parameter
    assert read("layers.0.x") == Target("first.x")
    assert read("layers.1.x") == Target("layers.1.x")
    assert read("layers.3.x") == Skipped("last")
    assert read("layers.4.q.w") == Target("layers.4.q.w")
    assert read("layers.5.q.w") == Target("layers.5.qkv.w", "q")


def info(name: str) -> TensorInfo:
    return TensorInfo(name, (2, 3), torch.float32, "x")


def test_every_tensor_is_skipped_or_in_one_group() -> None:
    infos = {name: info(name) for name in names()}
    routes = route(infos, STANDARD)
    grouped = [claim.tensor.name for group in routes.groups.values() for claim in group.claims]
    skipped = [tensor.name for tensor in routes.skipped]
    assert sorted(grouped + skipped) == sorted(infos) and skipped
    order = list(infos)
    for group in routes.groups.values():
        assert all(order[claim.at] == claim.tensor.name for claim in group.claims)
        assert [claim.at for claim in group.claims] == sorted(claim.at for claim in group.claims)


def test_no_tensors_lead_nowhere() -> None:
    routes = route({}, STANDARD)
    assert not routes.groups and not routes.skipped


def spec(rows: int, start: int = 0) -> ShardSpec:
    taken = Piece(((start, start + rows), (0, 3)), ((0, rows), (0, 3)))
    return ShardSpec((rows, 3), (Segment(None, (2, 3), (taken,)),))


def test_layouts_are_told_apart_by_all_that_decides_them() -> None:
    layouts = Layouts()
    form = ((None, (2, 3), torch.float32),)
    cases = [
        (spec(1), torch.float32, form), (spec(1, 1), torch.float32, form),
        (spec(2), torch.float32, form), (spec(1), torch.bfloat16, form),
        (spec(1), torch.float32, ((None, (2, 3), torch.float16),)),
        (spec(1), torch.float32, (("q", (2, 3), torch.float32),)),
        (spec(1), torch.float32, ((None, (3, 2), torch.float32),)), (spec(1), torch.float32, ()),
        (replace(spec(1), optional=True), torch.float32, form),
        (replace(spec(1), padding=(((0, 0), (0, 3)),)), torch.float32, form),
    ]  # fmt: skip
    for number, case in enumerate(cases):
        assert layouts.get(*case) is None, number
        layouts.put(*case, Layout((), (), number, (), ()))
    for number, (shard_spec, dtype, each) in enumerate(cases):
        found = layouts.get(replace(shard_spec), dtype, tuple(list(each)))
        assert found is not None and found.nbytes == number
    assert len(layouts) == len(cases)


def test_an_object_that_is_gone_lends_its_identity_to_nobody() -> None:
    layouts = Layouts()
    layouts.put(spec(1), torch.float32, (), Layout((), (), 1, (), ()))
    for _ in range(100):
        assert layouts.get(spec(1), torch.float32, ()) is not None
        assert layouts.get(spec(2), torch.float32, ()) is None
