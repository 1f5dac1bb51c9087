"""Ignore lists go through the name map of the weights: what is listed stays plain, whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registry.sites import Site
from transformers import Phi3Config, Phi3ForCausalLM

import archzoo
from archzoo.context import BuildContext
from archzoo.errors import QuantizationError
from archzoo.models import name_map
from archzoo.parallel import Topology
from archzoo.quantization import (
    IgnoreList,
    QuantConfig,
    QuantTarget,
    UnquantizedLinearMethod,
    quant_config,
)
from archzoo.quantization.ignored import PartlyPlain
from archzoo.quantization.unquantized_experts import UnquantizedExpertsMethod
from archzoo.weights import NameMap
from tiny import SIZES, tiny_llama

LAYER = "model.layers.1"
QKV, GATE_UP = f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.mlp.gate_up_proj"
OUT, DOWN = f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.down_proj"
SPLIT = tuple(f"{LAYER}.self_attn.{part}_proj" for part in "qkv")
ALL = (QKV, OUT, GATE_UP, DOWN, "lm_head")


@pytest.fixture(scope="module")
def names() -> NameMap:
    return name_map(archzoo.resolve("LlamaForCausalLM"), "hf")


def wrapped(names: NameMap, backbone: str, heads: str) -> NameMap:
    """The map of a checkpoint that stores everything inside something else."""
    tensors = ("embed_tokens", "norm", *(f"layers.1.self_attn.{part}_proj" for part in "qkvo"))
    stored = [f"{backbone}.{tensor}.weight" for tensor in tensors]
    return names.bound([*stored, f"{heads}lm_head.weight"])


def covered(entries: tuple[str, ...], names: NameMap) -> set[str]:
    ignored = IgnoreList(entries, names)
    return {prefix for prefix in ALL if ignored.covers(prefix)}


def spelled(value: object) -> str:
    """Of a set the same on every run, so that processes which share the tests collect alike."""
    return str(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), set()),
        (("lm_head",), {"lm_head"}),
        (("lm_head", *SPLIT), {"lm_head", QKV}),
        ((QKV,), {QKV}),
        ((f"{LAYER}.mlp",), {GATE_UP, DOWN}),
        (("self_attn",), {QKV, OUT}),
        (("layers.1",), set(ALL) - {"lm_head"}),
        (("layers.1.mlp.",), {GATE_UP, DOWN}),
        (("model.layers.2",), set()),
        (("layers.11", "down", "proj", "head", "lm_hea", "visual.blocks.0"), set()),
        (("re:.*lm_head",), {"lm_head"}),
        ((r"re:(model\.)?lm_head",), {"lm_head"}),
        (("re:.*self_attn.*",), {QKV, OUT}),
        ((r"re:.*\.(gate|up)_proj$",), {GATE_UP}),
        (("re:.*gate_proj", "re:.*up_proj"), {GATE_UP}),
        (("re:lm", "re:down_proj", "re:visual.*"), {"lm_head"}),
        ((r"re:model\.layers\.\d+\.mlp\.down_proj",), {DOWN}),
        ((*SPLIT[:2], "re:.*v_proj"), {QKV}),
    ],
    ids=spelled,
)
def test_layers_are_found_by_the_names_of_the_checkpoint(
    names: NameMap, entries: tuple[str, ...], expected: set[str]
) -> None:
    assert covered(entries, names) == expected


@pytest.mark.parametrize(
    ("backbone", "heads"),
    [
        ("language_model.model", "language_model."),
        ("model.language_model", ""),
        ("base_model.model.model", "base_model.model."),
    ],
)
def test_wrappers_are_undone_as_they_are_for_weights(
    names: NameMap, backbone: str, heads: str
) -> None:
    fitted = wrapped(names, backbone, heads)
    stored = tuple(f"{backbone}.layers.1.self_attn.{part}_proj" for part in "qkv")
    assert covered((*stored, f"{heads}lm_head"), fitted) == {QKV, "lm_head"}
    assert covered((f"{backbone}.layers.1.mlp",), fitted) == {GATE_UP, DOWN}
    assert covered(SPLIT, fitted) == {QKV}, "some writers list names without the wrapper"
    expression = "re:" + backbone.replace(".", r"\.") + r"\.layers\.1\.self_attn\.o_proj"
    assert covered((expression,), fitted) == {OUT}
    assert covered((r"re:model\.layers\.1\.mlp\.(gate|up)_proj",), fitted) == {GATE_UP}


@pytest.mark.parametrize(
    ("entries", "listed", "others"),
    [
        (SPLIT[:1], "q_proj", "k_proj"),
        ((SPLIT[0], SPLIT[2]), "v_proj", "k_proj"),
        (("mlp.up_proj",), "up_proj", "gate_proj"),
        (("re:.*gate_proj",), "gate_proj", "up_proj"),
    ],
    ids=spelled,
)
def test_half_a_stacked_layer_is_refused(
    names: NameMap, entries: tuple[str, ...], listed: str, others: str
) -> None:
    with pytest.raises(QuantizationError, match="list all of them or none") as told:
        covered(entries, names)
    has, not_has = str(told.value).split(" and not ")
    assert f"{listed}" in has and f"{others}" in not_has and LAYER in has
    assert (QKV in has) or (GATE_UP in has)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("re:(", "is no regular expression"),
        ("re:(a+)+$", "might never end"),
        ("re:(a|a)*$", "might never end"),
        ("re:(.*){9}", "might never end"),
        ("re:.*.*.*.*.*x", "might never end"),
        ("re:" + "a" * 300, "longer than 256"),
        ("", "empty entry"),
        ("..", "empty entry"),
    ],
)
def test_entries_that_cannot_be_used_are_refused_at_once(entry: str, says: str) -> None:
    with pytest.raises(QuantizationError, match=says):
        IgnoreList((entry,))


METHOD = """
from archzoo.quantization import QuantConfig, UnquantizedLinearMethod
class Method(UnquantizedLinearMethod): pass
class Config(QuantConfig):
    name = "zq4"
    @classmethod
    def from_checkpoint(cls, settings):
        found = cls()
        found.settings = dict(settings)
        return found
    def method_for(self, target):
        return Method()
"""


@pytest.fixture
def zq4(live_site: Site) -> None:
    live_site.install(
        "p", {"zq4": "zq_i4:Config"}, group="archzoo.quantization", files={"zq_i4.py": METHOD}
    )


def kind(config: QuantConfig, prefix: str) -> str:
    return type(config.method_for(QuantTarget(prefix, "linear"))).__name__


@pytest.mark.parametrize("key", ["ignore", "modules_to_not_convert", "ignored_layers"])
@pytest.mark.usefixtures("zq4")
def test_a_method_sees_no_list_and_is_not_asked_for_what_is_listed(
    names: NameMap, key: str
) -> None:
    config: Any = quant_config({"quant_method": "zq4", "bits": 4, key: ["lm_head", *SPLIT]}, names)
    assert config.name == "zq4" and config.method.settings == {"quant_method": "zq4", "bits": 4}
    assert [kind(config, prefix) for prefix in (QKV, "lm_head")] == ["UnquantizedLinearMethod"] * 2
    assert [kind(config, prefix) for prefix in (OUT, GATE_UP, DOWN)] == ["Method"] * 3


@pytest.mark.usefixtures("zq4")
def test_without_a_list_the_method_is_all_there_is() -> None:
    for entries in ({}, {"ignore": []}, {"ignore": [], "ignored_layers": []}):
        config: Any = quant_config({"quant_method": "zq4", **entries})
        assert type(config).__name__ == "Config" and config.settings == {"quant_method": "zq4"}


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"ignore": "lm_head"}, "ignore is lm_head; expected a list"),
        ({"ignore": {"a": 1}}, "expected a list"),
        ({"ignore": [1]}, "expected a list"),
        ({"ignore": 7}, "expected a list"),
        ({"ignore": ["a"], "ignored_layers": ["b"]}, "ignore and ignored_layers"),
    ],
)
@pytest.mark.usefixtures("zq4")
def test_lists_that_are_none(lists: dict[str, Any], says: str) -> None:
    with pytest.raises(QuantizationError, match=says):
        quant_config({"quant_method": "zq4", **lists})


@pytest.mark.usefixtures("zq4")
def test_a_load_asks_with_the_checkpoints_names(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)[0]
    config = json.loads((path / "config.json").read_text())
    block = {"quant_method": "zq4", "ignore": ["lm_head", *SPLIT, "re:.*down_proj"]}
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": block}))
    module = archzoo.load(path, dtype="float32", kv_slots=16, tp=3).module
    kinds = {
        name: type(layer.quant_method).__name__
        for name, layer in module.named_modules()
        if hasattr(layer, "quant_method")
    }
    plain = {name for name, kind in kinds.items() if kind == "UnquantizedLinearMethod"}
    assert {QKV} | {f"model.layers.{at}.mlp.down_proj" for at in range(3)} <= plain
    assert all(
        kinds[name] == "Method" for name in (OUT, GATE_UP, "model.layers.0.mlp.gate_up_proj")
    )
    block["ignore"] = SPLIT[:2]
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": block}))
    with pytest.raises(QuantizationError, match=r"k_proj and not model\.layers\.1\.self_attn\.v_p"):
        archzoo.load(path, dtype="float32", kv_slots=16)


def test_a_plain_layer_is_made_by_the_plain_method() -> None:
    """Of a checkpoint that stores its layers fused, and lists them so."""

    class Never(QuantConfig):
        name = "never"

        def method_for(self, target: QuantTarget) -> Any:
            raise AssertionError(target)

    phi = name_map(archzoo.resolve("Phi3ForCausalLM"), "hf")
    entries = ("lm_head", "embed_tokens", "re:.*qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    ctx = BuildContext.of(
        Topology(), device="meta", quant=PartlyPlain(Never(), IgnoreList(entries, phi))
    )
    raw = json.loads(Phi3Config(**SIZES).to_json_string())
    raw["architectures"] = [Phi3ForCausalLM.__name__]
    module = archzoo.build(raw, ctx)
    assert isinstance(module.get_submodule(QKV).quant_method, UnquantizedLinearMethod)


EXPERTS = f"{LAYER}.mlp.experts"


def of_experts(*kinds: str, numbers: range) -> tuple[str, ...]:
    return tuple(f"{EXPERTS}.{at}.{kind}_proj" for at in numbers for kind in kinds)


@pytest.mark.parametrize(
    "entries",
    [
        (EXPERTS,),
        (f"{EXPERTS}.gate_up_proj",),
        of_experts("gate", "up", numbers=range(5)),
        (r"re:.*experts\.\d+\.(gate|up)_proj",),
    ],
)
def test_all_experts_of_a_layer_are_plain_or_none(names: NameMap, entries: tuple[str, ...]) -> None:
    assert IgnoreList(entries, names).covers(f"{EXPERTS}.gate_up_proj", 5)
    assert not IgnoreList((OUT,), names).covers(f"{EXPERTS}.gate_up_proj", 5)


def test_some_experts_alone_are_refused(names: NameMap) -> None:
    ignored = IgnoreList(of_experts("gate", "up", numbers=range(4)), names)
    with pytest.raises(QuantizationError, match=rf"10 parts.*4 more and not {EXPERTS}\.4\.gate"):
        ignored.covers(f"{EXPERTS}.gate_up_proj", 5)


def test_listed_experts_get_plain_weights(names: NameMap) -> None:
    class Plainless(QuantConfig):
        name = "none"

        def method_for(self, target: QuantTarget) -> Any:
            raise AssertionError(target)

    quant = PartlyPlain(Plainless(), IgnoreList((f"{EXPERTS}.gate_up_proj",), names))
    target = QuantTarget(f"{EXPERTS}.gate_up_proj", "experts", 5)
    assert isinstance(quant.experts_method_for(target), UnquantizedExpertsMethod)
    with pytest.raises(QuantizationError, match="does not serve experts"):
        quant.experts_method_for(QuantTarget(f"{EXPERTS}.down_proj", "experts", 5))
