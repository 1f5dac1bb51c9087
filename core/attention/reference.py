"""Dense attention in float64: slow, plain, and what every backend is compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..forward import AttentionSpec, AttentionType


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: AttentionSpec,
    q_positions: Tensor,
    kv_positions: Tensor,
    q_requests: Tensor | None = None,
    kv_requests: Tensor | None = None,
) -> Tensor:
    """Softmax attention written out, every score computed.

    Args:
        q: (T, N, H).
        k: (L, K, H), every key there is, cached ones included.
        v: (L, K, Hv).
        spec: the layer.
        q_positions: (T,) position of each query in its sequence.
        kv_positions: (L,) position of each key in its sequence.
        q_requests: (T,) request of each query; None when all belong to one.
        kv_requests: (L,) request of each key; None likewise.

    Returns:
        (T, N, Hv) float64; a query that sees no key gives zeros.
    """
    group = spec.num_heads // spec.num_kv_heads
    k64, v64 = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("tnh,lnh->ntl", q.double(), k64) * spec.scaling
    if spec.logit_cap is not None:
        scores = spec.logit_cap * torch.tanh(scores / spec.logit_cap)
    sees = _sees(spec, q_positions, kv_positions)
    if q_requests is not None and kv_requests is not None:
        sees &= q_requests[:, None] == kv_requests[None, :]
    weights = torch.softmax(scores.masked_fill(~sees, -math.inf), dim=-1)
    weights = weights.masked_fill(~sees, 0.0)
    return torch.einsum("ntl,lnv->tnv", weights, v64)


def _sees(spec: AttentionSpec, q_positions: Tensor, kv_positions: Tensor) -> Tensor:
    """(T, L): whether a query's position lets it see a key's."""
    ahead = kv_positions[None, :] - q_positions[:, None]
    sees = torch.ones_like(ahead, dtype=torch.bool)
    if spec.attn_type is AttentionType.DECODER:
        sees &= ahead <= 0
    if spec.sliding_window is not None:
        sees &= ahead.abs() < spec.sliding_window
    return sees
