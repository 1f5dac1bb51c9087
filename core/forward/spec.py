"""AttentionSpec: what a backend must know of one attention layer; engine-neutral."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AttentionType(Enum):
    """Who may look at whom."""

    DECODER = "decoder"
    """Causal, over the KV cache."""
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    """Every token of a forward sees all tokens of its request, cached prefix included."""
    ENCODER_ONLY = "encoder_only"
    """Every token sees all tokens of its request in this forward; nothing is cached."""
    ENCODER_DECODER = "encoder_decoder"
    """Cross-attention. No backend here serves it; refused by name."""


@dataclass(frozen=True)
class AttentionSpec:
    """One attention layer on one rank.

    Args:
        layer_id: global layer number, never a stage-local index.
        prefix: dotted module path.
        num_heads: N, query heads on this rank.
        num_kv_heads: K, KV heads on this rank; divides N.
        head_dim: H, of queries and keys.
        v_head_dim: Hv, of values.
        scaling: factor on the scores.
        sliding_window: tokens a query sees, itself included; None for all.
        logit_cap: scores become cap * tanh(score / cap); None for plain scores.
        attn_type: who sees whom.
    """

    layer_id: int
    prefix: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    scaling: float
    sliding_window: int | None = None
    logit_cap: float | None = None
    attn_type: AttentionType = AttentionType.DECODER
