"""KV layout and pool."""

from __future__ import annotations

import pytest
import torch

from archzoo.errors import CapacityError
from archzoo.forward import AttentionSpec, AttentionType, KVCacheLayout, KVPool


def spec(layer_id: int, kind: AttentionType = AttentionType.DECODER) -> AttentionSpec:
    """6 query heads on 2 KV heads of 8, values of 5."""
    return AttentionSpec(layer_id, f"layers.{layer_id}", 6, 2, 8, 5, 1.0, attn_type=kind)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)]
)
def test_bytes_of_a_slot(dtype: torch.dtype, size: int) -> None:
    specs = [spec(3), spec(4, AttentionType.DECODER_BIDIRECTIONAL)]
    assert KVCacheLayout.of(specs, dtype).bytes_per_slot == 2 * 2 * (8 + 5) * size
    assert KVCacheLayout.of([], dtype).bytes_per_slot == 0


def test_the_pool_holds_what_the_layout_counts() -> None:
    layout = KVCacheLayout.of([spec(3), spec(7)], torch.bfloat16)
    pool = KVPool(layout, 11, 2, 4)
    held = 0
    for layer_id in (3, 7):
        layer = pool.layer(layer_id)
        assert layer is not None
        assert (layer.k.shape, layer.v.shape) == ((11, 2, 8), (11, 2, 5))
        assert layer.k.dtype is layer.v.dtype is torch.bfloat16
        held += layer.k.nbytes + layer.v.nbytes
    assert held == 11 * layout.bytes_per_slot


def test_layers_have_their_global_number_and_their_own_storage() -> None:
    pool = KVPool(KVCacheLayout.of([spec(3), spec(7)], torch.float32), 2, 1, 1)
    first, second = pool.layer(3), pool.layer(7)
    assert first is not None and second is not None
    tensors = (first.k, first.v, second.k, second.v)
    assert len({tensor.data_ptr() for tensor in tensors}) == 4
    assert pool.layer(0) is None


def test_encoder_only_layers_cache_nothing() -> None:
    specs = [spec(0, AttentionType.ENCODER_ONLY), spec(1)]
    layout = KVCacheLayout.of(specs, torch.float32)
    assert [cached.layer_id for cached in layout.specs] == [1]
    assert KVPool(layout, 1, 1, 1).layer(0) is None


def test_the_slot_table_has_a_row_for_each_request_and_starts_at_zero() -> None:
    pool = KVPool(KVCacheLayout.of([spec(0)], torch.float32), 4, 3, 9)
    assert torch.equal(pool.req_to_token, torch.zeros(3, 9, dtype=torch.int64))
    assert (pool.num_slots, pool.max_requests, pool.max_context) == (4, 3, 9)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-5, 1, 1)])
def test_sizes_below_one(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(CapacityError, match=f"got {sizes[0]} slots, {sizes[1]} requests"):
        KVPool(KVCacheLayout.of([spec(0)], torch.float32), *sizes)


def test_a_pool_on_meta_takes_no_memory() -> None:
    pool = KVPool(KVCacheLayout.of([spec(0)], torch.float32), 10**12, 1, 1, device="meta")
    layer = pool.layer(0)
    assert layer is not None
    assert layer.k.device.type == pool.req_to_token.device.type == "meta"
