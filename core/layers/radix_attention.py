"""RadixAttention: the adapter between model code and an attention backend."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..forward import AttentionSpec, AttentionType, ForwardBatch
from ..parallel import HeadLayout


class RadixAttention(nn.Module):
    """Attention of one layer, computed by whatever backend the batch brings.

    Holds facts only: its ``spec`` and, once bound, the handle of its own KV cache. It reads
    nothing from the scheduler and keeps no batch.

    Args:
        num_heads: N, query heads on this rank.
        head_dim: H, of queries and keys.
        scaling: factor on the scores.
        num_kv_heads: K, KV heads on this rank.
        layer_id: global layer number.
        v_head_dim: Hv, of values; H when None.
        sliding_window: tokens a query sees, itself included; None for all.
        logit_cap: soft cap on the scores; None for none.
        attn_type: who sees whom.
        prefix: dotted module path.

    Shapes:
        q: (T, N*H); k: (T', K*H); v: (T', K*Hv); returns (T, N*Hv).
    """

    kv: Any

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        *,
        v_head_dim: int | None = None,
        sliding_window: int | None = None,
        logit_cap: float | None = None,
        attn_type: AttentionType = AttentionType.DECODER,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.spec = AttentionSpec(
            layer_id,
            prefix,
            num_heads,
            num_kv_heads,
            head_dim,
            head_dim if v_head_dim is None else v_head_dim,
            scaling,
            sliding_window,
            logit_cap,
            attn_type,
        )
        self.kv = None

    @staticmethod
    def of(heads: HeadLayout, head_dim: int, layer_id: int, **options: Any) -> RadixAttention:
        """For a QKV linear's head layout; scaling is 1/sqrt(head_dim) unless given."""
        scaling = options.pop("scaling", head_dim**-0.5)
        return RadixAttention(
            heads.num_heads, head_dim, scaling, heads.num_kv_heads, layer_id, **options
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend; padded rows come out as zeros."""
        spec = self.spec
        out = batch.backend.forward(
            q.view(-1, spec.num_heads, spec.head_dim),
            None if k is None else k.view(-1, spec.num_kv_heads, spec.head_dim),
            None if v is None else v.view(-1, spec.num_kv_heads, spec.v_head_dim),
            spec,
            batch,
            self.kv,
            save_kv_cache,
        ).flatten(1)
        real = batch.num_real
        if real is not None and batch.backend.padded_rows == "undefined" and real < out.shape[0]:
            out[real:] = 0
        return out
