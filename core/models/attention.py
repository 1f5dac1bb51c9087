"""Grouped-query attention with rotary positions, shared by Llama-like families."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from ..config import ModelConfig
from ..forward import ForwardBatch
from ..layers import (
    BuildContext,
    QKVParallelLinear,
    RadixAttention,
    RotaryRows,
    RowParallelLinear,
    get_rope,
)


class GroupedQueryAttention(nn.Module):
    """Project, rotate, attend, project back.

    A family that does something to queries and keys before they are rotated overrides
    ``normalize``.

    Args:
        config: sizes, biases, window and rotary embedding.
        layer_id: global layer number.
        ctx, prefix: as everywhere.

    Shapes:
        hidden_states: (T, D); returns (T, D), partial over ``parallel_group``.
    """

    parallel_group: ClassVar[str] = "attn_tp"
    reduce_results: ClassVar[bool] = False
    """Whether it completes its own sum; only where no stage boundary does."""

    @classmethod
    def input_size(cls, config: ModelConfig) -> int:
        """Features of the rows it reads."""
        return config.hidden_size

    def __init__(
        self, config: ModelConfig, layer_id: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            self.input_size(config),
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.attention_bias,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.qkv_proj",
        )
        self.rotary_emb = get_rope(config.rope_for(layer_id), dtype=ctx.dtype, device=ctx.device)
        self.attn = RadixAttention.of(
            self.qkv_proj.heads,
            config.head_dim,
            layer_id,
            sliding_window=config.window(layer_id),
            logit_cap=config.attn_logit_softcap,
            prefix=f"{prefix}.attn",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=config.o_proj_bias,
            reduce_results=self.reduce_results,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.o_proj",
            input_name="num_attention_heads * head_dim",
        )

    def normalize(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """(T, N*H) queries and (T, K*H) keys as they are rotated; here unchanged."""
        return q, k

    def forward(
        self, positions: Tensor | RotaryRows, hidden_states: Tensor, batch: ForwardBatch
    ) -> Tensor:
        """(T, D) to this rank's part of the sum."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.qkv_proj.local_sizes, dim=-1)
        q, k = self.rotary_emb(positions, *self.normalize(q, k))
        out: Tensor
        out, _ = self.o_proj(self.attn(q, k, v, batch))
        return out
