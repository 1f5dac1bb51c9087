from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import WeightError
from archzoo.weights import (
    STANDARD_GATE_UP_MAPPING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    NameMap,
    NameRules,
    RemapRegistry,
    Rename,
    Skip,
    Skipped,
    Target,
)
from archzoo.weights.patterns import Pattern, split

STACKING = STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING
STANDARD = NameMap((), STANDARD_SKIPS, STACKING)
FOREIGN = (
    Rename("token_embd.*", "model.embed_tokens.*"),
    Rename("blk.*.attn_q.*", "model.layers.*.self_attn.q_proj.*"),
    Rename("blk.*.attn_k.*", "model.layers.*.self_attn.k_proj.*"),
    Rename("blk.*.ffn_down.*", "model.layers.*.mlp.down_proj.*"),
)


@pytest.mark.parametrize(
    ("pattern", "name", "captures"),
    [
        ("**.q_proj.*", "model.layers.0.self_attn.q_proj.weight",
         (("model", "layers", "0", "self_attn"), ("weight",))),
        ("**.q_proj.*", "q_proj.bias", ((), ("bias",))),
        ("**.q_proj.*", "qq_proj.bias", None),
        ("**.q_proj.*", "a.q_proj", None),
        ("**.q_proj.*", "a.q_proj.x.y", None),
        ("a.**.b", "a.b", ((),)),
        ("a.**.b", "a", None),
        ("a.**.a", "a", None),
        ("*", "a", (("a",),)),
        ("*", "a.b", None),
        ("**", "a.b", (("a", "b"),)),
        ("a.b", "a.b", ()),
    ],
)  # fmt: skip
def test_patterns_match_whole_components(pattern, name, captures):
    found = Pattern(pattern).match(split(name))
    assert found == captures
    if found is not None:
        assert ".".join(Pattern(pattern).fill(found)) == name


@pytest.mark.parametrize("bad", ["", "a..b", ".a", "a.", "q*", "*q.weight", "**.a.**", "***"])
def test_patterns_that_are_not_over_components_are_refused(bad):
    with pytest.raises(WeightError):
        Pattern(bad)


def test_overlap_agrees_with_trying_all_names():
    alphabet = ["a", "b", "*", "**"]
    texts = [
        ".".join(parts)
        for size in (1, 2, 3)
        for parts in itertools.product(alphabet, repeat=size)
        if parts.count("**") < 2
    ]
    names = [n for size in range(1, 6) for n in itertools.product("abc", repeat=size)]
    patterns = [Pattern(text) for text in texts]
    matched = [frozenset(n for n in names if p.match(n) is not None) for p in patterns]
    for (p, mine), (q, theirs) in itertools.product(zip(patterns, matched, strict=True), repeat=2):
        assert p.overlaps(q) == bool(mine & theirs), (p, q)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("model.layers.3.self_attn.q_proj.weight", ("model.layers.3.self_attn.qkv_proj.weight", "q")),
        ("model.layers.3.mlp.up_proj.weight_scale", ("model.layers.3.mlp.gate_up_proj.weight_scale", 1)),
        ("model.layers.3.mlp.gate_up_proj.weight", ("model.layers.3.mlp.gate_up_proj.weight", None)),
        ("model.layers.3.self_attn.qkv_proj.bias", ("model.layers.3.self_attn.qkv_proj.bias", None)),
        ("model.layers.3.mlp.xup_proj.weight", ("model.layers.3.mlp.xup_proj.weight", None)),
        ("", ("", None)),
        ("..", ("..", None)),
    ],
)  # fmt: skip
def test_standard_mapping(name, target):
    assert STANDARD.to_parameter(name) == Target(*target)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.cos_cached",
        "h.0.attn.bias",
        "h.0.attn.masked_bias",
    ],
)
def test_standard_skips(name):
    assert isinstance(STANDARD.to_parameter(name), Skipped)


@pytest.mark.parametrize("name", ["model.attn.bias.weight", "self_attn.bias", "inv_freq"])
def test_standard_skips_leave_others_alone(name):
    assert STANDARD.to_parameter(name) == Target(name)


component = st.sampled_from(
    ["model", "layers", "0", "17", "self_attn", "q_proj", "k_proj", "qkv_proj", "up_proj", "mlp",
     "gate_up_proj", "weight", "bias", "blk", "attn_q", "attn_k", "token_embd", "ffn_down", "", "wrap"]
)  # fmt: skip
names = st.lists(component, min_size=1, max_size=6).map(".".join)
MAPS = [
    STANDARD,
    NameMap((FOREIGN,), STANDARD_SKIPS, STACKING),
    NameMap(((Rename("wrap.model.**", "model.**"),), FOREIGN), STANDARD_SKIPS, STACKING),
]


@settings(deadline=None)
@given(names, st.sampled_from(MAPS))
def test_round_trip(name, name_map):
    target = name_map.to_parameter(name)
    if isinstance(target, Skipped):
        return
    try:
        back = name_map.to_checkpoint(target.parameter, target.shard_id)
    except WeightError:
        # Only a parameter that looks like a checkpoint name cannot be reached.
        assert name_map.to_parameter(target.parameter) != target
        return
    assert name_map.to_parameter(back) == target


@pytest.mark.parametrize("layer", [0, 7, 11])
@pytest.mark.parametrize("rule", [*FOREIGN, *STACKING])
def test_a_name_that_a_rule_matches_comes_back_exactly(rule, layer):
    name_map = NameMap((FOREIGN,), (), STACKING)
    parts = {"*": str(layer), "**": f"x.{layer}"}
    name = ".".join(parts.get(part, part) for part in rule.pattern.split("."))
    target = name_map.to_parameter(name)
    back = name_map.to_checkpoint(target.parameter, target.shard_id)
    if name_map.rename(name) == name:
        assert name_map.rename(back) == name
    else:
        assert back == name


def test_unreachable_parameters_are_named():
    with pytest.raises(WeightError, match="shard 'z' of a.qkv_proj.weight"):
        STANDARD.to_checkpoint("a.qkv_proj.weight", "z")
    with pytest.raises(WeightError, match="no stacking rule"):
        STANDARD.to_checkpoint("a.o_proj.weight", "q")
    with pytest.raises(WeightError, match="gives Target"):
        STANDARD.to_checkpoint("a.q_proj.weight")
    with pytest.raises(WeightError, match="attention mask buffer"):
        STANDARD.to_checkpoint("h.0.attn.bias")


@pytest.mark.parametrize(
    "build",
    [
        lambda: NameMap(((Rename("a.*", "b.*"), Rename("*.c", "*.d")),)),
        lambda: NameMap(((Rename("a.*", "x.*"), Rename("b.*", "x.*")),)),
        lambda: NameMap((), (Skip("one", "**.a", ""), Skip("two", "b.**", ""))),
        lambda: NameMap((), (), (Rename("a", "x", 0), Rename("a", "y", 1))),
        lambda: NameMap((), (), (Rename("a", "x", 0), Rename("b", "x", 0))),
    ],
)
def test_overlapping_rules_are_refused_naming_both(build):
    with pytest.raises(WeightError, match=r"'.*' and '.*' match common names"):
        build()


def test_alternative_spellings_go_into_separate_phases():
    name_map = NameMap(((Rename("a.*", "x.*"),), (Rename("b.*", "x.*"),)))
    assert name_map.to_parameter("a.1") == name_map.to_parameter("b.1") == Target("x.1")
    assert name_map.to_checkpoint("x.1") == "b.1"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Rename("a.*", "b"),
        lambda: Rename("a.*.**", "b.**.*"),
        lambda: NameMap(((Rename("a", "b", "q"),),)),
        lambda: NameMap((), (), (Rename("a", "b"),)),
    ],
)
def test_rules_that_cannot_be_undone_or_stand_in_the_wrong_phase_are_refused(build):
    with pytest.raises(WeightError):
        build()


def test_name_maps_pickle():
    again = pickle.loads(pickle.dumps(MAPS[2]))
    assert again == MAPS[2]
    assert again.to_parameter("blk.0.attn_q.weight") == Target(
        "model.layers.0.self_attn.qkv_proj.weight", "q"
    )


class Base: ...


class Middle(Base): ...


class Leaf(Middle): ...


def registry():
    out = RemapRegistry()
    out.register(Base, "hf", NameRules(skips=STANDARD_SKIPS, stacking=STANDARD_QKV_MAPPING))
    out.register(Base, "gguf", NameRules(renames=FOREIGN))
    return out


def test_subclasses_inherit_and_add():
    rules = registry()
    rules.register(
        Middle, "hf", NameRules((Rename("wrap.**", "**"),), (), STANDARD_GATE_UP_MAPPING)
    )
    name_map = rules.for_class(Leaf, "hf")
    assert name_map.to_parameter("wrap.mlp.up_proj.weight") == Target("mlp.gate_up_proj.weight", 1)
    assert name_map.to_parameter("a.q_proj.weight") == Target("a.qkv_proj.weight", "q")
    assert rules.for_class(Base, "hf").to_parameter("wrap.a") == Target("wrap.a")


def test_a_subclass_runs_its_renames_before_its_bases():
    rules = RemapRegistry()
    rules.register(Base, "hf", NameRules((Rename("b.*", "c.*"),)))
    rules.register(Leaf, "hf", NameRules((Rename("a.*", "b.*"),)))
    assert rules.for_class(Leaf, "hf").to_parameter("a.x") == Target("c.x")


def test_other_formats_lead_through_the_hf_rules():
    name_map = registry().for_class(Leaf, "gguf")
    assert name_map.to_parameter("blk.2.attn_k.weight") == Target(
        "model.layers.2.self_attn.qkv_proj.weight", "k"
    )
    assert name_map.to_checkpoint("model.layers.2.self_attn.qkv_proj.weight", "k") == (
        "blk.2.attn_k.weight"
    )


def test_inherit_false_stops():
    rules = registry()
    rules.register(Middle, "hf", NameRules(inherit=False))
    assert rules.for_class(Leaf, "hf") == NameMap()


def test_unknown_formats_and_foreign_names_nobody_declared_are_refused():
    rules = registry()
    for call in (
        lambda: rules.for_class(Base, "onnx"),
        lambda: rules.register(Base, "", NameRules()),
    ):
        with pytest.raises(WeightError, match="formats are hf, gguf"):
            call()
    with pytest.raises(WeightError, match="int declares no names for gguf"):
        rules.for_class(int, "gguf")
    assert rules.for_class(int, "hf") == NameMap()


def test_registering_again():
    rules = registry()
    rules.register(Base, "gguf", NameRules(renames=FOREIGN))
    with pytest.raises(WeightError, match="Base has gguf name rules already"):
        rules.register(Base, "gguf", NameRules())
    with pytest.raises(WeightError, match="match common names"):
        rules.register(Leaf, "hf", NameRules((Rename("a", "b"), Rename("a", "c"))))
    rules.register(
        Leaf, "hf", NameRules((), (), (Rename("**.q_proj.weight", "**.other.weight", 0),))
    )
    with pytest.raises(WeightError, match="match common names"):
        rules.for_class(Leaf, "hf")
