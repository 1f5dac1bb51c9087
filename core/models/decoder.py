"""Decoder skeleton: embedding, a stack of pre-norm layers, final norm.

::

    ids -> embed -> [ prepare -> attention -> finish -> prepare -> MLP -> finish ] x n -> norm

A layer states what it computes; its two stage boundaries own the residual and every sum.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor, nn

from ..boundary import ResidualStream, StageBoundary
from ..config import ModelConfig
from ..errors import InputError
from ..forward import ForwardBatch
from ..layers import (
    BuildContext,
    RMSNorm,
    RotaryEmbedding,
    RotaryRows,
    VocabParallelEmbedding,
    get_rope,
)
from .mlp import GatedMLP


class AttentionClass(Protocol):
    """Constructor of a layer's attention."""

    def __call__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> nn.Module:
        """Build it."""
        ...


class FeedForwardClass(Protocol):
    """Constructor of a layer's MLP."""

    def __call__(self, config: ModelConfig, *, ctx: BuildContext, prefix: str) -> nn.Module:
        """Build it."""
        ...


class DecoderLayer(nn.Module):
    """One pre-norm layer: attention, then MLP.

    A plugin sets ``attention`` (called as ``attn(positions, hidden_states, batch)``) and
    ``feed_forward`` (called as ``mlp(hidden_states)``). Both give (T, D), partial over their
    ``parallel_group``.

    Args:
        config: the model.
        layer_id: global layer number.
        ctx, prefix: as everywhere.
    """

    attention: ClassVar[AttentionClass]
    feed_forward: ClassVar[FeedForwardClass] = GatedMLP

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        cls = type(self)
        self.self_attn = cls.attention(config, layer_id, ctx=ctx, prefix=f"{prefix}.self_attn")
        self.mlp = cls.feed_forward(config, ctx=ctx, prefix=f"{prefix}.mlp")
        self.input_layernorm = _norm(config, ctx, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = _norm(config, ctx, f"{prefix}.post_attention_layernorm")
        self.attn_boundary = _boundary(self.input_layernorm, self.self_attn, ctx, prefix)
        self.mlp_boundary = _boundary(self.post_attention_layernorm, self.mlp, ctx, prefix)

    def forward(
        self, positions: Tensor | RotaryRows, stream: ResidualStream, batch: ForwardBatch
    ) -> None:
        """Run both stages over the stream."""
        hidden_states = self.attn_boundary.prepare(stream)
        self.attn_boundary.finish(stream, self.self_attn(positions, hidden_states, batch))
        hidden_states = self.mlp_boundary.prepare(stream)
        self.mlp_boundary.finish(stream, self.mlp(hidden_states))


class DecoderModel(nn.Module):
    """Embedding, layers and final norm.

    Args:
        config: the model.
        layer: the plugin's layer class.
        ctx, prefix: as everywhere.
    """

    def __init__(
        self, config: ModelConfig, layer: type[DecoderLayer], *, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        self.layers = nn.ModuleList(
            layer(config, layer_id, ctx=ctx, prefix=f"{prefix}.layers.{layer_id}")
            for layer_id in range(config.num_hidden_layers)
        )
        self.norm = _norm(config, ctx, f"{prefix}.norm")
        self._ropes, self._rope_of = _distinct_ropes(config, ctx)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        input_embeds: Tensor | None = None,
    ) -> Tensor:
        """(T,) ids or (T, D) embeddings to (T, D) hidden rows after the final norm.

        Raises:
            InputError: neither or both of ids and embeddings.
        """
        hidden_states = self.embed(input_ids, input_embeds)
        stream = ResidualStream(hidden_states)
        rows = [rotary_rows(rope, positions, batch) for rope in self._ropes]
        for layer, rope in zip(self.layers, self._rope_of, strict=True):
            layer(positions if rope is None else rows[rope], stream, batch)
        return stream.read(self.norm)

    @property
    def needs_known_lens(self) -> bool:
        """Whether ``batch.tokens.known_lens`` is read: some rotation depends on length."""
        return any(rope.needs_seq_lens for rope in self._ropes)

    def embed(self, input_ids: Tensor | None, input_embeds: Tensor | None = None) -> Tensor:
        """Embeddings of the ids, or the embeddings given, checked for width."""
        if (input_ids is None) == (input_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise InputError(f"give input_ids or input_embeds; got {given}")
        if input_embeds is None:
            embedded: Tensor = self.embed_tokens(input_ids)
            return embedded
        if input_embeds.shape[-1] != self.hidden_size:
            raise InputError(
                f"input_embeds has {input_embeds.shape[-1]} features, hidden_size is "
                f"{self.hidden_size}"
            )
        return input_embeds.to(self.norm.weight.dtype)


def rotary_rows(rope: RotaryEmbedding, positions: Tensor, batch: ForwardBatch) -> RotaryRows:
    """cos and sin of every row, looked up once for all layers that rotate alike."""
    lengths = None if batch.tokens is None else batch.tokens.known_lens
    return rope.rows(positions, lengths if rope.needs_seq_lens else None)


def _distinct_ropes(
    config: ModelConfig, ctx: BuildContext
) -> tuple[list[RotaryEmbedding], list[int | None]]:
    """Each rotation of the model once, and for every layer which of them it turns by."""
    if config.rope is None:
        return [], [None] * config.num_hidden_layers
    by_layer = [config.rope_for(layer_id) for layer_id in range(config.num_hidden_layers)]
    distinct = list(dict.fromkeys(by_layer))
    ropes = [get_rope(rope, dtype=ctx.dtype, device=ctx.device) for rope in distinct]
    return ropes, [distinct.index(rope) for rope in by_layer]


def _norm(config: ModelConfig, ctx: BuildContext, prefix: str) -> RMSNorm:
    return RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx, prefix=prefix)


def _boundary(norm: RMSNorm, compute: nn.Module, ctx: BuildContext, prefix: str) -> StageBoundary:
    group = ctx.group(getattr(compute, "parallel_group", "tp"))
    return StageBoundary(norm, group, compute, f"{prefix}.{type(compute).__name__}")
