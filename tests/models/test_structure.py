"""What is built is what the module tree shows; mistakes of plugin authors are refused when built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from archzoo import BuildContext, Topology
from archzoo.boundary import StageFacts, declare_attn, declare_ffn
from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.errors import ArchzooError, BoundaryError, ShapeError
from archzoo.layers import RadixAttention, RMSNorm, RowParallelLinear, get_rope
from archzoo.models import CausalLM, DecoderLayer, make_norm
from archzoo_llama.model import LlamaAttention, LlamaDecoderLayer
from tiny import SIZES

LAYERS = 4


def config_of() -> ModelConfig:
    return ModelConfig.from_dict({**SIZES, "num_hidden_layers": LAYERS}, LLAMA_LIKE)


def build(kind: type[CausalLM], rank: int = 1) -> CausalLM:
    """Built and checked as load does it: the second of two pipeline stages."""
    ctx = BuildContext.of(Topology(pp=2, rank=rank), device="meta")
    module = kind(config_of(), ctx)
    module.check_structure()
    return module


class Llama(CausalLM):
    layer = LlamaDecoderLayer


def of_layer(layer: type[DecoderLayer]) -> type[CausalLM]:
    return type("Planted", (CausalLM,), {"layer": layer})


def of_attention(attention: Any) -> type[CausalLM]:
    return of_layer(type("Layer", (DecoderLayer,), {"attention": attention}))


def changed(change: Callable[[Any, Any], None]) -> type[CausalLM]:
    """A model that does something to itself when all is built."""

    class Planted(Llama):
        def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
            super().__init__(config, ctx, prefix)
            change(self, ctx)

    return Planted


def attention_with(change: Callable[[Any, Any], None]) -> type[CausalLM]:
    """Each attention does something to itself."""

    class Attention(LlamaAttention):
        def __init__(
            self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
        ) -> None:
            super().__init__(config, layer_id, ctx=ctx, prefix=prefix)
            change(self, ctx)

    return of_attention(Attention)


def spec_of(**facts: Any) -> type[CausalLM]:
    def change(attention: Any, _: Any) -> None:
        attention.attn.spec = replace(attention.attn.spec, **facts)

    return attention_with(change)


def local_ids(config: ModelConfig, layer_id: int, **options: Any) -> nn.Module:
    return LlamaAttention(config, layer_id - 2, **options)


class LocalLayer(LlamaDecoderLayer):
    """Numbers itself by its place in the pipeline stage."""

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__(config, layer_id - 2, ctx=ctx, prefix=prefix)


def set_norm(model: Any, ctx: Any) -> None:
    model.model.norm = RMSNorm(SIZES["hidden_size"], ctx=ctx, prefix="model.norm")


def set_layer_norm(model: Any, ctx: Any) -> None:
    layer = model.model.layers[2]
    layer.input_layernorm = make_norm(model.config, ctx, layer.input_layernorm.prefix)


def set_attention(model: Any, ctx: Any) -> None:
    where = "model.layers.2.self_attn"
    model.model.layers[2].self_attn = LlamaAttention(model.config, 2, ctx=ctx, prefix=where)


def set_boundary(model: Any, ctx: Any) -> None:
    layer = model.model.layers[2]
    layer.attn_boundary = layer.make_boundaries(model.config, ctx=ctx, prefix="model.layers.2")[0]


def local_list(model: Any, ctx: Any) -> None:
    model.model.layers = nn.ModuleList([model.model.layers[2], model.model.layers[3]])


def share_attention(model: Any, ctx: Any) -> None:
    model.model.layers[3].self_attn.attn = model.model.layers[2].self_attn.attn


def second_cache(model: Any, ctx: Any) -> None:
    model.beside = RadixAttention(1, 8, 1.0, 1, 2)


def set_rope(attention: Any, ctx: Any) -> None:
    rope = replace(attention.rotary_emb.config, theta=5.0)
    attention.rotary_emb = get_rope(rope, dtype=ctx.dtype, device=ctx.device)


def plain_list(attention: Any, ctx: Any) -> None:
    attention.adapters = [{"down": RowParallelLinear(8, 8, bias=False, ctx=ctx)}]


def hidden_attention(attention: Any, ctx: Any) -> None:
    attention.inner = [attention.attn]
    del attention.attn


def wrong_prefix(attention: Any, ctx: Any) -> None:
    attention.o_proj.prefix = "o_proj"


class ContradictingLayer(LlamaDecoderLayer):
    """Says that experts follow; they do not."""

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        return declare_attn(), declare_ffn(next_layer_sparse=True)


class LayerNormLayer(LlamaDecoderLayer):
    """nn.LayerNorm takes no residual."""

    def make_boundaries(self, config: ModelConfig, **options: Any) -> Any:
        self.input_layernorm = nn.LayerNorm(config.hidden_size)
        attn, _ = self.stage_facts(config, self.layer_id)
        from archzoo.boundary import StageBoundary

        norm: Any = self.input_layernorm
        return (StageBoundary(attn, self.self_attn, norm=norm, where=options["prefix"]),)


PLANTED: dict[str, tuple[type[CausalLM], type[ArchzooError], str]] = {
    "stage-local attention": (
        of_attention(local_ids), ShapeError, r"layers\.2\.self_attn\.attn.*layer 2 says layer_id=0",
    ),
    "stage-local layer": (of_layer(LocalLayer), ShapeError, r"layers\.2.*layer_id is 0"),
    "id beyond the last": (spec_of(layer_id=99), ShapeError, "layer_id=99"),
    "one id in all layers": (spec_of(layer_id=2), ShapeError, r"layers\.3.*layer_id=2"),
    "one attention in two layers": (changed(share_attention), ShapeError, r"layers\.3.*=2"),
    "another attention of that id": (changed(second_cache), ShapeError, "beside and|and beside"),
    "a list of the stage's layers": (changed(local_list), ShapeError, "2 layers of a model of 4"),
    "KV heads": (spec_of(num_kv_heads=1), ShapeError, "1 KV heads"),
    "query heads of all ranks": (spec_of(num_heads=64), ShapeError, "64 query"),
    "final norm": (changed(set_norm), BoundaryError, r"model\.norm: the norm of its boundary"),
    "norm of a layer": (changed(set_layer_norm), BoundaryError, r"layers\.2\.self_attn: the norm"),
    "attention": (changed(set_attention), BoundaryError, r"layers\.2\.self_attn: the compute"),
    "boundary": (changed(set_boundary), BoundaryError, r"layers\.2\.self_attn"),
    "rotation": (attention_with(set_rope), BoundaryError, r"layers\.2\.self_attn\.rotary_emb.*5\.0"),
    "plain list": (attention_with(plain_list), BoundaryError, r"adapters: keeps a RowParallel"),
    "attention in a list": (attention_with(hidden_attention), BoundaryError, "inner: keeps"),
    "prefix": (attention_with(wrong_prefix), BoundaryError, r"layers\.2\.self_attn\.o_proj.*'o_proj'"),
    "experts that do not follow": (of_layer(ContradictingLayer), BoundaryError, "next_layer_sparse"),
    "nn.LayerNorm": (of_layer(LayerNormLayer), BoundaryError, "LayerNorm, which takes rows alone"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_is_refused_when_built(mistake: str) -> None:
    kind, error, text = PLANTED[mistake]
    with pytest.raises(error, match=text):
        build(kind)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sound_model_is_built_on_both_stages(rank: int) -> None:
    assert build(Llama, rank).model.stage.layers.start == 2 * rank


@pytest.mark.parametrize("way", ["weights_ready", "load_weights"])
def test_a_norm_assigned_after_building_is_found_before_it_is_filled(way: str) -> None:
    ctx = BuildContext.of()
    module = Llama(config_of(), ctx)
    set_norm(module, ctx)
    with pytest.raises(BoundaryError, match=r"model\.norm"):
        module.weights_ready() if way == "weights_ready" else module.load_weights({})


def test_a_norm_of_ones_own_that_adds_is_taken() -> None:
    class Own(nn.Module):
        def __init__(self, width: int, ctx: BuildContext) -> None:
            super().__init__()
            self.inner = RMSNorm(width, ctx=ctx)

        def forward(self, x: Any, residual: Any = None) -> Any:
            return self.inner(x) if residual is None else self.inner(x, residual)

    class Layer(LlamaDecoderLayer):
        def make_boundaries(self, config: ModelConfig, **options: Any) -> Any:
            from archzoo.boundary import StageBoundary

            _, mlp = super().make_boundaries(config, **options)
            norm: Any = Own(config.hidden_size, options["ctx"])
            self.input_layernorm = norm
            where, facts = options["prefix"], self.stage_facts(config, self.layer_id)[0]
            self.attn_boundary = StageBoundary(facts, self.self_attn, norm=norm, where=where)
            return self.attn_boundary, mlp

    assert isinstance(build(of_layer(Layer)).model.layers[2].input_layernorm, Own)
    assert torch.device("meta") == next(build(Llama).parameters()).device
