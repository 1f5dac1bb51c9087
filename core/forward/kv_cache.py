"""KV cache layout and pool.

The layout comes from the attention specs, hence from the same HeadLayout as the QKV linear, so
KV-head copies show in memory planning. The pool holds tensors only; who owns which slot is the
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CapacityError
from .spec import AttentionSpec, AttentionType


@dataclass(frozen=True)
class LayerKV:
    """One layer's cache: k (S, K, H) and v (S, K, Hv)."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True)
class KVCacheLayout:
    """Shape of the cache of one rank.

    Args:
        specs: the layers that cache, one each.
        dtype: of keys and values.
    """

    specs: tuple[AttentionSpec, ...]
    dtype: torch.dtype

    @staticmethod
    def of(specs: Sequence[AttentionSpec], dtype: torch.dtype) -> KVCacheLayout:
        """The layout for these layers; encoder-only layers cache nothing."""
        cached = tuple(spec for spec in specs if spec.attn_type is not AttentionType.ENCODER_ONLY)
        return KVCacheLayout(cached, dtype)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes one token takes on this rank, all layers, KV-head copies included."""
        elements = sum(s.num_kv_heads * (s.head_dim + s.v_head_dim) for s in self.specs)
        return elements * self.dtype.itemsize


class KVPool:
    """Slots for keys and values, and the table that says which slot holds which token.

    Args:
        layout: layers and dtype.
        num_slots: S, tokens the pool can hold.
        max_requests: requests that can be under way at once.
        max_context: tokens of the longest sequence.
        device: where the tensors live.

    Attributes:
        req_to_token: (max_requests, max_context) int64, slot of each position of a request.

    Raises:
        CapacityError: sizes below 1.
    """

    def __init__(
        self,
        layout: KVCacheLayout,
        num_slots: int,
        max_requests: int,
        max_context: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if min(num_slots, max_requests, max_context) < 1:
            raise CapacityError(
                f"a KV pool needs at least one slot, request and position; got {num_slots} slots, "
                f"{max_requests} requests, {max_context} positions"
            )
        self.layout, self.num_slots = layout, num_slots
        self.max_requests, self.max_context = max_requests, max_context
        self.req_to_token = torch.zeros(max_requests, max_context, dtype=torch.int64, device=device)
        self._layers = {
            spec.layer_id: LayerKV(
                self._empty(spec.num_kv_heads, spec.head_dim, device),
                self._empty(spec.num_kv_heads, spec.v_head_dim, device),
            )
            for spec in layout.specs
        }

    def layer(self, layer_id: int) -> LayerKV | None:
        """That layer's tensors; None for a layer that caches nothing."""
        return self._layers.get(layer_id)

    def _empty(self, heads: int, dim: int, device: torch.device | str) -> Tensor:
        return torch.empty(self.num_slots, heads, dim, dtype=self.layout.dtype, device=device)
