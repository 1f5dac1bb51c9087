"""The arithmetic: softmax attention with the query heads of a KV head folded into rows.

Query heads that share a KV head are more query rows for the same keys, so grouped attention
becomes plain attention with N / K times the rows. That reads each key once, and torch's CPU
kernel runs it faster than its own ``enable_gqa`` (bfloat16, one row, 512 keys: 60 against 300
microseconds).

Letters: B sequences, M query rows of each, L keys, N query heads, K KV heads, G = N / K.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..forward import AttentionSpec


def fold(q: Tensor, sequences: int, kv_heads: int) -> Tensor:
    """(B*M, N, H) -> (B, K, M*G, H); rows of a KV head are ordered by query, then head."""
    total, heads, dim = q.shape
    if total == sequences:
        return q.view(sequences, kv_heads, heads // kv_heads, dim)
    rows, group = total // sequences, heads // kv_heads
    by_head = q.view(sequences, rows, kv_heads, group, dim).transpose(1, 2)
    return by_head.reshape(sequences, kv_heads, rows * group, dim)


def unfold(out: Tensor, group: int) -> Tensor:
    """(B, K, M*G, Hv) -> (B*M, N, Hv): the way back from ``fold``."""
    sequences, kv_heads, folded, dim = out.shape
    if folded == group:
        return out.reshape(sequences, kv_heads * group, dim)
    rows = folded // group
    by_row = out.view(sequences, kv_heads, rows, group, dim).transpose(1, 2)
    return by_row.reshape(sequences * rows, kv_heads * group, dim)


def by_head(x: Tensor, sequences: int = 1) -> Tensor:
    """Key or value rows (B*L, K, H) as a view (B, K, L, H)."""
    return x.view(sequences, -1, x.shape[1], x.shape[2]).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Softmax attention of folded queries.

    Args:
        q: (B, K, M*G, H).
        k: (B, K, L, H).
        v: (B, K, L, Hv); every row is finite, hidden ones too: a zero weight does not stop NaN.
        bias: added to the scores, broadcastable to (B, K, M*G, L), q's dtype; None for all zero.
        spec: scale and soft cap.

    Returns:
        (B, K, M*G, Hv).
    """
    if spec.logit_cap is not None:
        return _attend_capped(q, k, v, bias, spec.scaling, spec.logit_cap)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=spec.scaling)


def _attend_capped(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scaling: float, cap: float
) -> Tensor:
    """Scores squashed by cap * tanh(score / cap) before the mask; softmax in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q, k.transpose(-1, -2)).to(wide)
    scores = torch.tanh(scores * (scaling / cap)) * cap
    if bias is not None:
        scores = scores + bias
    return torch.matmul(torch.softmax(scores, dim=-1).to(v.dtype), v)
