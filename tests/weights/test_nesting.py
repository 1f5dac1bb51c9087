"""Wrappers around a checkpoint's names: one for all of them, or a refusal."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import CoverageError, WeightError
from archzoo.weights import (
    STANDARD_NESTING,
    STANDARD_SKIPS,
    STANDARD_SPELLINGS,
    AutoWeightsLoader,
    IterableSource,
    NameMap,
    NameRules,
    Nesting,
    RemapRegistry,
    Rename,
    Skip,
    Target,
)
from archzoo.weights.standard_names import STANDARD_GATE_UP_MAPPING, STANDARD_QKV_MAPPING

RULES = NameRules(
    skips=STANDARD_SKIPS,
    stacking=STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING,
    spellings=STANDARD_SPELLINGS,
    nesting=STANDARD_NESTING,
)
STORED = [
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.weight_scale_inv",
    "model.layers.0.self_attn.k_proj.k_scale",
    "model.layers.1.self_attn.qkv_proj.weight",
    "model.layers.1.self_attn.kv_scale",
    "model.layers.1.mlp.up_proj.activation_scale",
    "model.layers.1.mlp.gate_up_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
]
CANONICAL = {
    "model.layers.0.self_attn.q_proj.weight": Target("model.layers.0.self_attn.qkv_proj.weight", "q"),
    "model.layers.0.self_attn.q_proj.weight_scale_inv": Target(
        "model.layers.0.self_attn.qkv_proj.weight_scale", "q"
    ),
    "model.layers.0.self_attn.k_proj.k_scale": Target("model.layers.0.self_attn.attn.k_scale"),
    "model.layers.1.self_attn.kv_scale": Target("model.layers.1.self_attn.attn.kv_scale"),
    "model.layers.1.mlp.up_proj.activation_scale": Target(
        "model.layers.1.mlp.gate_up_proj.input_scale", 1
    ),
}  # fmt: skip


class Model: ...


def standard() -> NameMap:
    registry = RemapRegistry()
    registry.register(Model, "hf", RULES)
    return registry.for_class(Model, "hf")


def wrapped(names, backbone, heads):
    """The names as a trainer stores them."""
    head = f"{heads}." if heads else ""
    body = f"{backbone}." if backbone else ""
    return [
        body + name.removeprefix("model.") if name.startswith("model.") else head + name
        for name in names
    ]


WRAPPERS = {
    "none": ("model", ""),
    "model. missing": ("", ""),
    "model. doubled": ("model.model", "model"),
    "model. doubled, head at the top": ("model.model", ""),
    "language_model.": ("language_model.model", "language_model"),
    "multimodal": ("model.language_model", ""),
    "transformer.": ("transformer", ""),
    "PEFT": ("base_model.model.model", "base_model.model"),
    "TRL": ("pretrained_model.model", "pretrained_model"),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_is_undone_for_every_name_and_put_back(kind):
    stored = wrapped(STORED, *WRAPPERS[kind])
    bound = standard().bound(stored)
    for plain, name in zip(STORED, stored, strict=True):
        target = bound.to_parameter(name)
        assert target == CANONICAL.get(plain, Target(plain))
        assert bound.to_checkpoint(target.parameter, target.shard_id) == name
    assert bool(bound.notes) == (kind != "none")
    if kind != "none":
        assert repr(WRAPPERS[kind][0]) in bound.notes[0]


INSIDE = {
    "compiled and distributed": lambda name: f"module._orig_mod.{name}",
    "compiled layers": lambda name: re.sub(r"(layers\.\d)", r"\1._orig_mod", name),
    "one layer checkpointed": lambda name: name.replace(
        "layers.0.", "layers.0._checkpoint_wrapped_module."
    ),
    "FSDP within FSDP": lambda name: "_fsdp_wrapped_module." + re.sub(
        r"(layers\.\d|self_attn|norm|lm_head)\.", r"\1._fsdp_wrapped_module.", name
    ),
    "in a multimodal model": lambda name: f"language_model._orig_mod.{name}",
}  # fmt: skip


@pytest.mark.parametrize("kind", INSIDE)
def test_wrappers_of_training_are_left_out_wherever_they_stand(kind):
    stored = [INSIDE[kind](name) for name in STORED]
    bound = standard().bound(stored)
    for plain, name in zip(STORED, stored, strict=True):
        target = bound.to_parameter(name)
        assert target == CANONICAL.get(plain, Target(plain))
        assert bound.to_checkpoint(target.parameter, target.shard_id) == name
    assert "components of training wrappers are left out of names: '_" in bound.notes[0]


def test_a_wrapped_tensor_beside_the_plain_one_is_refused():
    names = ["model.norm.weight", "model._orig_mod.norm.weight"]
    for order in (names, names[::-1]):
        with pytest.raises(WeightError, match=r"'model\.norm\.weight' at 2 places.*_orig_mod"):
            standard().bound(order)


@pytest.mark.parametrize("keep", [slice(0, 1), slice(10, 11), slice(0, 0)])
def test_a_few_names_are_enough(keep):
    """A tied checkpoint has no head, an update may bring a head alone, or nothing."""
    stored = wrapped(STORED[keep], "language_model.model", "language_model")
    bound = standard().bound(stored)
    assert [bound.rename(name) for name in stored] == STORED[keep]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["model.layers.0.a", "layers.1.a"], ["'model.layers.0.a'", "'layers.1.a'", "2 places"]),
        (["model.norm.weight", "model.model.norm.weight"], ["the backbone"]),
        (["lm_head.weight", "language_model.lm_head.weight"], ["its heads", "'lm_head.weight'"]),
        (["model.norm.weight", "transformer.lm_head.weight"], ["the model", "transformer.lm"]),
        (["model.norm.weight", "model.lm_head.weight"], ["the model"]),
        (["norm.weight", "model.lm_head.weight"], ["the model"]),
    ],
)
def test_mixtures_are_refused_by_name(names, says):
    for order in (names, names[::-1]):
        with pytest.raises(WeightError) as caught:
            standard().bound(order)
        for part in says:
            assert part in str(caught.value)


@pytest.mark.parametrize(
    "stray",
    ["visual.layers.0.weight", "vision_tower.model.layers.0.weight", "", "..", "model", "model..norm",
     "encoder.layers.0.weight", "mtp.layers.0.weight", "model.visual.norm.weight"],
)  # fmt: skip
def test_only_a_wrappers_components_may_stand_in_front(stray):
    bound = standard().bound([*STORED, stray])
    assert not bound.notes and bound.rename(stray) == stray


component = st.sampled_from(
    ["model", "language_model", "layers", "0", "norm", "lm_head", "self_attn", "k_proj", "k_scale",
     "kv_scale", "weight", "weight_scale_inv", "q_proj", "qkv_proj", "visual", "attn", "up_proj"]
)  # fmt: skip
checkpoints = st.lists(
    st.lists(component, min_size=1, max_size=7).map(".".join), max_size=12, unique=True
)


@settings(deadline=None, max_examples=300)
@given(checkpoints)
def test_every_name_of_a_checkpoint_comes_back(names):
    """Unless two of them mean one tensor, or a name looks like a stacked parameter."""
    try:
        bound = standard().bound(names)
    except WeightError as error:
        assert "places that do not belong together" in str(error)
        return
    places = [bound.to_parameter(name) for name in names]
    for name, place in zip(names, places, strict=True):
        if isinstance(place, Target) and places.count(place) == 1:
            try:
                back = bound.to_checkpoint(place.parameter, place.shard_id)
            except WeightError:
                assert bound.to_parameter(place.parameter) != place
                continue
            assert back == name


def test_binding_again_changes_nothing():
    stored = wrapped(STORED, "language_model.model", "language_model")
    once = standard().bound(stored)
    assert once.bound(stored) == once
    assert once.bound(stored).notes == once.notes and len(once.notes) == 1


def test_gguf_names_are_not_unwrapped():
    registry = RemapRegistry()
    registry.register(Model, "hf", RULES)
    registry.register(Model, "gguf", NameRules((Rename("output_norm.*", "model.norm.*"),)))
    bound = registry.for_class(Model, "gguf").bound(["output_norm.weight", "norm.weight"])
    assert bound.rename("output_norm.weight") == "model.norm.weight"
    assert bound.rename("norm.weight") == "norm.weight"


def test_a_subclass_has_its_own_nesting_spellings_and_leftovers():
    class Other(Model): ...

    registry = RemapRegistry()
    registry.register(Model, "hf", RULES)
    own = NameRules(
        spellings=(Rename("**.w_scale", "**.weight_scale"),),
        nesting=Nesting("decoder", ("blocks",), ("out",), ("decoder", "wrap")),
    )
    registry.register(Other, "hf", own)
    bound = registry.for_class(Other, "hf").bound(["wrap.blocks.0.a.w_scale"])
    assert bound.rename("wrap.blocks.0.a.w_scale") == "decoder.blocks.0.a.weight_scale"
    assert bound.to_checkpoint("decoder.blocks.0.a.weight_scale") == "wrap.blocks.0.a.w_scale"


@pytest.mark.parametrize(
    ("spellings", "says"),
    [
        ((Rename("a.*", "b.*"), Rename("b.*", "c.*")), "renames again"),
        ((Rename("a.*", "a.*"),), "renames again"),
        ((Rename("a.*", "b.*"), Rename("*.c", "*.d")), "match common names"),
        ((Rename("a", "b", 0),), "shard id"),
    ],
)
def test_spellings_are_checked_when_they_are_declared(spellings, says):
    with pytest.raises(WeightError, match=says):
        NameMap(spellings=spellings)
    with pytest.raises(WeightError, match=says):
        RemapRegistry().register(Model, "hf", NameRules(spellings=spellings))


def report_of(toy, extra, name_map):
    loader = AutoWeightsLoader(toy.model(), name_map=name_map)
    return loader.load_weights(toy.checkpoint() | extra)


def test_what_real_checkpoints_carry_is_left_out_by_name_with_a_reason(toy):
    at = "model.layers.0.self_attn"
    extra = {
        f"{at}.rotary_emb.inv_freq": "rotary inv_freq",
        "model.rotary_emb.original_inv_freq": "rotary original_inv_freq",
        f"{at}.rotary_emb.cos_cached": "rotary cos_cached",
        f"{at}.rotary_emb.sin_cached": "rotary sin_cached",
        f"{at}.attn.bias": "attention mask buffer",
        f"{at}.attn.masked_bias": "attention masked_bias",
        "model.embeddings.position_ids": "position ids",
        f"{at}.kv_scale": "KV-cache scale",
        f"{at}.k_proj.k_scale": "KV-cache scale",
        "model.layers.1.self_attn.v_proj.output_scale": "KV-cache scale",
        "model.layers.1.self_attn.k_scale": "KV-cache scale",
        "model.visual.blocks.0.attn.q_proj.weight": "vision: visual",
        "vision_tower.x.weight": "vision: vision_tower",
        "multi_modal_projector.linear_1.bias": "vision: multi_modal_projector",
        "mtp.layers.0.self_attn.q_proj.weight": "multi-token prediction",
    }
    report = report_of(toy(), {name: torch.ones(()) for name in extra}, standard())
    found = {name: rule for rule, names in report.skipped.items() for name in names}
    assert found == extra and set(report.skip_reasons) == set(extra.values())
    text = report.explain_skips()
    for name, rule in extra.items():
        assert (
            f"  {name}" in text.splitlines() and f"{rule} ({report.skip_reasons[rule]}): " in text
        )
    assert "KV cache is not quantised" in text


def test_nothing_left_out(toy):
    assert report_of(toy(), {}, standard()).explain_skips() == "nothing was left out"


def test_a_tensor_that_a_parameter_wants_is_never_a_leftover(toy):
    scale = torch.nn.Parameter(torch.full((), float("nan")), requires_grad=False)
    model = toy().model()
    model.model.layers[0].self_attn.attn = torch.nn.Module()
    model.model.layers[0].self_attn.attn.k_scale = scale
    loader = AutoWeightsLoader(model, name_map=standard())
    full = toy().checkpoint()
    full["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.25)
    full["model.layers.1.self_attn.k_proj.k_scale"] = torch.tensor(0.5)
    fates = loader.plan(IterableSource(full.items()).infos()).findings.fates
    assert fates["model.layers.0.self_attn.k_proj.k_scale"] == "loaded"
    report = loader.load_weights(full)
    assert scale.item() == 0.25
    assert report.skipped == {"KV-cache scale": ("model.layers.1.self_attn.k_proj.k_scale",)}
    full["model.layers.0.self_attn.k_scale"] = torch.tensor(0.25)
    with pytest.raises(CoverageError, match="both fill model.layers.0.self_attn.attn.k_scale"):
        loader.load_weights(full)


def test_a_leftover_rule_does_not_hide_its_neighbours(toy):
    full = {"model.layers.0.self_attn.q_proj.weight_scale_inv": torch.ones(()),
            "visually.weight": torch.ones(())}  # fmt: skip
    with pytest.raises(CoverageError) as caught:
        report_of(toy(), full, standard())
    assert {fault.name for fault in caught.value.report.unexpected} == full.keys()


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapped_checkpoint_loads_as_the_plain_one_does(toy, kind):
    full = toy().checkpoint()
    stored = dict(zip(wrapped(full, *WRAPPERS[kind]), full.values(), strict=True))
    model = toy().model()
    loader = AutoWeightsLoader(model, name_map=standard())
    report = loader.load_weights(stored)
    assert set(report.loaded) == stored.keys()
    parameters = dict(model.named_parameters())
    for name, want in toy().expected(full).items():
        assert torch.equal(parameters[name], want), name
    assert len(report.notes) == (kind != "none")
    assert loader.plan({}).names.notes == ()


def test_a_mixture_leaves_the_model_untouched(toy):
    full = toy().checkpoint()
    full["layers.0.input_layernorm.weight"] = full.pop("model.layers.0.input_layernorm.weight")
    model = toy().model()
    with pytest.raises(WeightError, match="'layers.0.input_layernorm.weight'"):
        AutoWeightsLoader(model, name_map=standard()).load_weights(full)
    assert all(p.isnan().any() for p in model.parameters() if p.is_floating_point())


def test_unless_wanted_is_the_rules_own_word():
    rule = Skip("x", "a.**", "because", unless_wanted=True)
    names = NameMap(skips=(rule, Skip("y", "b.**", "too")))
    assert names.to_parameter("a.b") == Target("a.b")
    assert names.leftover("a.b") is not None and names.leftover("b.c") is None
