"""Models whose layers are of other shapes, as a plugin would write them: core is not touched."""

from __future__ import annotations

from torch import Tensor

from archzoo.boundary import (
    ResidualStream,
    StageBoundary,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_own,
    declare_parallel,
)
from archzoo.config import ModelConfig
from archzoo.forward import ForwardBatch
from archzoo.layers import BuildContext, RotaryRows
from archzoo.models import CausalLM, DecoderLayer, GatedMLP, make_norm
from archzoo_llama.model import LlamaAttention


class PostNormLayer(DecoderLayer):
    """x + norm(attn(x)), x + norm(mlp(x)), as OLMo 2."""

    attention = LlamaAttention

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        return declare_attn(read="plain", post=True), declare_ffn(read="plain", post=True)

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        self.post_attention_layernorm = make_norm(config, ctx, f"{prefix}.post_attention_layernorm")
        self.input_layernorm = make_norm(config, ctx, f"{prefix}.input_layernorm")
        attn, ffn = self.stage_facts(config, self.layer_id)
        self.attn_boundary = StageBoundary(
            attn, self.self_attn, post=self.post_attention_layernorm, where=f"{prefix}.self_attn"
        )
        self.mlp_boundary = StageBoundary(
            ffn, self.mlp, post=self.input_layernorm, where=f"{prefix}.mlp"
        )
        return self.attn_boundary, self.mlp_boundary


class SandwichLayer(DecoderLayer):
    """x + norm(attn(norm(x))), x + norm(mlp(norm(x))), as Gemma 2; both norms of a stage are one."""

    attention = LlamaAttention

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        return declare_attn(post=True), declare_ffn(post=True)

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        self.input_layernorm = make_norm(config, ctx, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = make_norm(config, ctx, f"{prefix}.post_attention_layernorm")
        first, second = self.input_layernorm, self.post_attention_layernorm
        attn, ffn = self.stage_facts(config, self.layer_id)
        self.attn_boundary = StageBoundary(
            attn, self.self_attn, norm=first, post=second, where=f"{prefix}.self_attn"
        )
        self.mlp_boundary = StageBoundary(
            ffn, self.mlp, norm=second, post=first, where=f"{prefix}.mlp"
        )
        return self.attn_boundary, self.mlp_boundary


class ParallelLayer(DecoderLayer):
    """x + attn(norm(x)) + mlp(norm(x)), as GPT-J and Cohere; or with a norm for each branch."""

    attention = LlamaAttention
    shared_norm = True

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        both = declare_attn(), declare_ffn()
        return (declare_parallel(*both, shared_norm=cls.shared_norm),)

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        self.input_layernorm = make_norm(config, ctx, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = make_norm(config, ctx, f"{prefix}.post_attention_layernorm")
        second = self.input_layernorm if self.shared_norm else self.post_attention_layernorm
        (facts,) = self.stage_facts(config, self.layer_id)
        self.boundary = StageBoundary(
            facts,
            {"attn": self.self_attn, "mlp": self.mlp},
            norm={"attn": self.input_layernorm, "mlp": second},
            where=prefix,
        )
        return (self.boundary,)

    def forward(
        self, positions: Tensor | RotaryRows, stream: ResidualStream, batch: ForwardBatch
    ) -> None:
        for_attn, for_mlp = self.boundary.prepare_branches(stream)
        attended = self.self_attn(positions, for_attn, batch)
        self.boundary.finish(stream, attended, self.mlp(for_mlp))


class TwoNormParallelLayer(ParallelLayer):
    """x + attn(norm1(x)) + mlp(norm2(x))."""

    shared_norm = False


class SummingAttention(LlamaAttention):
    """Completes its own sum."""

    reduce_results = True


class SummingMLP(GatedMLP):
    """Split over the attention group, completes its own sum."""

    parallel_group = "attn_tp"
    reduce_results = True


class OwnResidualLayer(DecoderLayer):
    """Drives its own residual: no boundary inside, linears complete their own sums."""

    attention = SummingAttention
    feed_forward = SummingMLP

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        return (declare_own("layer"),)

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        self.input_layernorm = make_norm(config, ctx, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = make_norm(config, ctx, f"{prefix}.post_attention_layernorm")
        (facts,) = self.stage_facts(config, self.layer_id)
        self.boundary = StageBoundary(facts, self, where=prefix)
        return (self.boundary,)

    def forward(
        self, positions: Tensor | RotaryRows, stream: ResidualStream, batch: ForwardBatch
    ) -> None:
        x = self.boundary.prepare(stream)
        x = x + self.self_attn(positions, self.input_layernorm(x), batch)
        x = x + self.mlp(self.post_attention_layernorm(x))
        self.boundary.finish(stream, x)


class TpAttention(LlamaAttention):
    """Llama's own attention, on the group of the whole pipeline stage."""

    parallel_group = "tp"


class TpAttentionLayer(DecoderLayer):
    """Pre-norm."""

    attention = TpAttention


class PostNormForCausalLM(CausalLM):
    """Post-norm."""

    layer = PostNormLayer


class SandwichForCausalLM(CausalLM):
    """Norms on both sides."""

    layer = SandwichLayer


class ParallelForCausalLM(CausalLM):
    """Parallel attention and MLP."""

    layer = ParallelLayer


class TwoNormParallelForCausalLM(CausalLM):
    """Parallel, each with its norm."""

    layer = TwoNormParallelLayer


class OwnResidualForCausalLM(CausalLM):
    """Layers that drive their own residual."""

    layer = OwnResidualLayer


class TpAttentionForCausalLM(CausalLM):
    """Attention over tp."""

    layer = TpAttentionLayer


EntryClass = [
    PostNormForCausalLM,
    SandwichForCausalLM,
    ParallelForCausalLM,
    TwoNormParallelForCausalLM,
    OwnResidualForCausalLM,
    TpAttentionForCausalLM,
]
