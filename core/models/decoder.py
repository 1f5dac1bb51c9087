"""Decoder skeleton: embedding, a stack of pre-norm layers, final norm.

::

    ids -> embed -> [ prepare -> attention -> finish -> prepare -> MLP -> finish ] x n -> norm

A layer states what it computes; its two stage boundaries own the residual and every sum. A pipeline
stage holds some of the layers; the embedding is on the first stage, the norm on the last, and the
residual stream is handed over in between (``hand_off``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..boundary import (
    ResidualStream,
    StageBoundary,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_moe,
)
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
from ..parallel import Elsewhere, PipelineStage
from ..parallel.rows import GroupRows
from ..weights import WeightState
from .attention import GroupedQueryAttention
from .hand_off import HandOff, PPProxyTensors
from .layer_stack import LayerStack
from .mlp import GatedMLP
from .rows import HeadRows
from .sparse_mlp import SparseMLP


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

    A plugin may set ``attention`` (called as ``attn(positions, hidden_states, batch)``) and
    ``feed_forward`` (called as ``mlp(hidden_states)``). Both give (T, D), partial over the group
    that ``stage_facts`` declares. Layers that the config says have experts get ``experts`` as MLP.

    A layer of another shape declares other facts, makes boundaries for them in
    ``make_boundaries``, and where there are other stages crosses them in ``forward``.

    Args:
        config: the model.
        layer_id: global layer number.
        ctx, prefix: as everywhere.

    Attributes:
        boundaries: of its stages, in order.
    """

    attention: ClassVar[AttentionClass] = GroupedQueryAttention
    feed_forward: ClassVar[FeedForwardClass] = GatedMLP
    experts: ClassVar[FeedForwardClass] = SparseMLP
    boundaries: tuple[StageBoundary, ...]

    @classmethod
    def stage_facts(cls, config: ModelConfig, layer_id: int) -> tuple[StageFacts, ...]:
        """What the stages of a layer declare, told without building it.

        Args:
            config: the model.
            layer_id: global layer number.
        """
        return declare_attn(), declare_moe() if config.is_sparse(layer_id) else declare_ffn()

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        cls = type(self)
        self.self_attn = cls.attention(config, layer_id, ctx=ctx, prefix=f"{prefix}.self_attn")
        feed_forward = cls.experts if config.is_sparse(layer_id) else cls.feed_forward
        self.mlp = feed_forward(config, ctx=ctx, prefix=f"{prefix}.mlp")
        self.boundaries = self.make_boundaries(config, ctx=ctx, prefix=prefix)

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        """Make the norms, and the boundaries of the stages that ``stage_facts`` declares.

        Args:
            config: the model.
            ctx, prefix: as everywhere.
        """
        self.input_layernorm = make_norm(config, ctx, f"{prefix}.input_layernorm")
        self.post_attention_layernorm = make_norm(config, ctx, f"{prefix}.post_attention_layernorm")
        attn, ffn = self.stage_facts(config, self.layer_id)
        self.attn_boundary = StageBoundary(
            attn, self.self_attn, norm=self.input_layernorm, where=f"{prefix}.self_attn"
        )
        self.mlp_boundary = StageBoundary(
            ffn, self.mlp, norm=self.post_attention_layernorm, where=f"{prefix}.mlp"
        )
        return self.attn_boundary, self.mlp_boundary

    def forward(
        self, positions: Tensor | RotaryRows, stream: ResidualStream, batch: ForwardBatch
    ) -> None:
        """Run both stages over the stream."""
        hidden_states = self.attn_boundary.prepare(stream)
        self.attn_boundary.finish(stream, self.self_attn(positions, hidden_states, batch))
        hidden_states = self.mlp_boundary.prepare(stream)
        self.mlp_boundary.finish(stream, self.mlp(hidden_states))


class DecoderModel(nn.Module):
    """Embedding, layers and final norm; of a pipeline stage, its part of them.

    ``layers`` has an entry for every layer of the model, so that ``layers.7`` is global layer 7
    on every stage; what another stage holds is an ``Elsewhere`` here.

    Args:
        config: the model.
        layer: the plugin's layer class.
        head: what the head declares.
        ctx, prefix: as everywhere.

    Attributes:
        stage: which layers are here.
        stack: their boundaries, and the plans for them.
        hand_off: takes the residual stream in and gives it on, between stages.
        weight_state: whether there are weights to compute with.
    """

    embed_tokens: VocabParallelEmbedding | Elsewhere
    norm: RMSNorm | Elsewhere

    def __init__(
        self,
        config: ModelConfig,
        layer: type[DecoderLayer],
        head: StageFacts,
        *,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.hidden_size, self.dtype = config.hidden_size, ctx.dtype
        self.weight_state = WeightState()
        self.stage = stage = ctx.pipeline_stage(config.num_hidden_layers)
        self.hand_off = HandOff(stage, config.hidden_size, ctx.dtype)
        where = f"{prefix}.embed_tokens"
        self.embed_tokens = (
            VocabParallelEmbedding(
                config.vocab_size,
                config.hidden_size,
                parallel_group="attn_tp",
                ctx=ctx,
                prefix=where,
            )
            if stage.is_first
            else Elsewhere(where, stage)
        )
        facts = [layer.stage_facts(config, at) for at in range(config.num_hidden_layers)]
        with LayerStack(facts, head, ctx=ctx, hidden_size=config.hidden_size) as self.stack:
            self.layers = nn.ModuleList(
                self._layer(layer, config, layer_id, ctx, f"{prefix}.layers.{layer_id}")
                for layer_id in range(config.num_hidden_layers)
            )
            where = f"{prefix}.norm"
            self.norm = make_norm(config, ctx, where) if stage.is_last else Elsewhere(where, stage)
            self._end = StageBoundary(head, {}, norm=self.norm, where=where)
            if stage.is_last:
                self.stack.append_head(self._end)
        self._ropes, self._rope_of = _distinct_ropes(config, ctx, stage)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        input_embeds: Tensor | None = None,
        pp_proxy_tensors: Mapping[str, Tensor] | None = None,
        picked: Tensor | None = None,
    ) -> HeadRows | PPProxyTensors:
        """Run the layers of this stage.

        Args:
            input_ids: (T,); read by the first stage only.
            positions: (T,) position of each row in its sequence.
            batch: the facts of this forward.
            input_embeds: (T, D) instead of ids, on the first stage.
            pp_proxy_tensors: what the stage before returned; None on the first stage.
            picked: (S,) int64, rows that leave the model; None for all real ones.

        Returns:
            Rows after the final norm; before the last stage what the next one takes.

        Raises:
            InputError: neither or both of ids and embeddings on the first stage, or proxies there;
                on the others embeddings, or anything but the proxies that belong to the positions;
                several attention groups and a batch that does not give their rows.
            SpoiltWeightsError, UnloadedWeightsError: the weights are not whole.
        """
        self.weight_state.require()
        rows = self.stack.rows_of(batch, positions.shape[0], picked)
        aux: dict[int, Tensor] = {}
        if self.stage.is_first:
            hidden_states = self._first_rows(input_ids, input_embeds, pp_proxy_tensors)
        else:
            hidden_states, aux = self._handed_rows(input_embeds, pp_proxy_tensors, rows)
        stream = self.stack.begin(hidden_states, rows, picked)
        self._run_layers(stream, positions, batch)
        if not self.stage.is_last:
            residual = self.stack.settle(stream)
            return self.hand_off.give(residual, aux | self.stack.captured(stream))
        normed = self._end.read(stream)
        return HeadRows(normed, self.stack.own(rows), aux | self.stack.captured(stream))

    def _run_layers(self, stream: ResidualStream, positions: Tensor, batch: ForwardBatch) -> None:
        rotations = [rotary_rows(rope, positions, batch) for rope in self._ropes]
        here = islice(self.layers, self.stage.layers.start, self.stage.layers.stop)
        for layer, rope in zip(here, self._rope_of, strict=True):
            layer(positions if rope is None else rotations[rope], stream, batch)

    def _first_rows(
        self,
        input_ids: Tensor | None,
        input_embeds: Tensor | None,
        proxies: Mapping[str, Tensor] | None,
    ) -> Tensor:
        if proxies is not None:
            raise InputError(
                f"pp_proxy_tensors was given to a first pipeline stage ({self.stage}); pass "
                "None, and ids or embeddings"
            )
        return self.embed(input_ids, input_embeds)

    def _handed_rows(
        self,
        input_embeds: Tensor | None,
        proxies: Mapping[str, Tensor] | None,
        rows: GroupRows,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if input_embeds is not None:
            raise InputError(
                f"input_embeds was given to a pipeline stage that holds {self.stage}; only the "
                "first stage reads them"
            )
        return self.hand_off.take(proxies, self.proxies_like(rows))

    def proxies_like(self, rows: GroupRows, device: torch.device | str = "meta") -> PPProxyTensors:
        """Tensors like those that this stage takes, values undefined.

        Args:
            rows: of every attention group.
            device: where to make them.
        """
        held = self.stack.own_rows(rows)
        before = self.stack.captured_before
        return self.hand_off.like(self.stack.entry_rows(rows), held, before, device)

    def _layer(
        self,
        layer: type[DecoderLayer],
        config: ModelConfig,
        layer_id: int,
        ctx: BuildContext,
        prefix: str,
    ) -> DecoderLayer | Elsewhere:
        """A layer with its boundaries in the stack, or what stands for another stage's."""
        if layer_id not in self.stage.layers:
            return Elsewhere(prefix, self.stage)
        built = layer(config, layer_id, ctx=ctx, prefix=prefix)
        self.stack.append_stages(layer_id, built.boundaries)
        return built

    def rope_of(self, layer_id: int) -> RotaryEmbedding | None:
        """What turns the rows that a layer of this stage is given; None where it gets positions."""
        rope = self._rope_of[layer_id - self.stage.layers.start]
        return None if rope is None else self._ropes[rope]

    @property
    def needs_known_lens(self) -> bool:
        """Whether ``batch.tokens.known_lens`` is read: some rotation depends on length."""
        return any(rope.needs_seq_lens for rope in self._ropes)

    def embed(self, input_ids: Tensor | None, input_embeds: Tensor | None = None) -> Tensor:
        """Embeddings of the ids, or the embeddings given.

        Args:
            input_ids: (T,); None with ``input_embeds``.
            input_embeds: (T, D) instead.

        Returns:
            (T, D) in the model's dtype.

        Raises:
            InputError: both or neither, or rows of another width.
            SpoiltWeightsError, UnloadedWeightsError: the weights are not whole.
        """
        self.weight_state.require()
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
        return input_embeds.to(self.dtype)


def rotary_rows(rope: RotaryEmbedding, positions: Tensor, batch: ForwardBatch) -> RotaryRows:
    """cos and sin of every row, looked up once for all layers that rotate alike."""
    lengths = None if batch.tokens is None else batch.tokens.known_lens
    return rope.rows(positions, lengths if rope.needs_seq_lens else None)


def _distinct_ropes(
    config: ModelConfig, ctx: BuildContext, stage: PipelineStage
) -> tuple[list[RotaryEmbedding], list[int | None]]:
    """Each rotation of the stage once, and for every layer here which of them it turns by."""
    if config.rope is None:
        return [], [None] * len(stage.layers)
    by_layer = [config.rope_for(layer_id) for layer_id in stage.layers]
    distinct = list(dict.fromkeys(by_layer))
    ropes = [get_rope(rope, dtype=ctx.dtype, device=ctx.device) for rope in distinct]
    return ropes, [distinct.index(rope) for rope in by_layer]


def make_norm(config: ModelConfig, ctx: BuildContext, prefix: str) -> RMSNorm:
    """The model's norm over hidden rows."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx, prefix=prefix)
