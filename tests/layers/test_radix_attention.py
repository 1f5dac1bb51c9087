"""RadixAttention hands rows in heads to the backend and lets nothing of padding out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from archzoo.forward import ForwardBatch, TokenRows
from archzoo.layers.radix_attention import RadixAttention
from archzoo.parallel import HeadLayout, shape_only

NAN = float("nan")


class Leftovers:
    """A backend that answers real rows with ones and leaves whatever was in the others."""

    name = "leftovers"

    def __init__(self, padded_rows: str, real: int) -> None:
        self.padded_rows, self.real = padded_rows, real
        self.shapes: list[tuple[int, ...] | None] = []
        self.handle: Any = None

    def forward(
        self, q: Tensor, k: Any, v: Any, spec: Any, batch: Any, kv: Any, save_kv_cache: bool
    ) -> Tensor:
        self.shapes = [None if x is None else tuple(x.shape) for x in (q, k, v)]
        self.handle = kv, save_kv_cache
        out = torch.full((q.shape[0], spec.num_heads, spec.v_head_dim), NAN)
        out[: self.real] = 1
        return out


def attention(rank: int = 0) -> RadixAttention:
    heads = HeadLayout.of(4, 2, shape_only(2, rank))
    return RadixAttention.of(heads, 6, 7, v_head_dim=5, prefix="model.layers.7.attn")


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("real", [0, 1, 4])
def test_padded_rows_come_out_as_zeros(real: int, padding: int) -> None:
    rows, backend = real + padding, Leftovers("undefined", real)
    tokens = TokenRows(rows, real, torch.arange(real))
    batch = ForwardBatch(backend, tokens=tokens)  # type: ignore[arg-type]  # a part of a backend
    out = attention()(torch.ones(rows, 12), torch.ones(rows, 6), torch.ones(rows, 5), batch)
    assert out.shape == (rows, 10)
    assert (out[:real] == 1).all() and (out[real:] == 0).all()


@pytest.mark.parametrize("padded_rows", ["zero", "undefined"])
def test_rows_are_the_backends_where_nothing_says_which_are_real(padded_rows: str) -> None:
    backend = Leftovers(padded_rows, 2)
    batch = ForwardBatch.external(backend)  # type: ignore[arg-type]  # a part of a backend
    out = attention()(torch.ones(3, 12), torch.ones(3, 6), torch.ones(3, 5), batch)
    assert (out[:2] == 1).all() and out[2].isnan().all()


def test_rows_are_cut_into_heads_and_the_handle_goes_along() -> None:
    layer, backend = attention(1), Leftovers("zero", 3)
    layer.kv = "cache of layer 7"
    batch = ForwardBatch.external(backend)  # type: ignore[arg-type]  # a part of a backend
    layer(torch.ones(3, 12), torch.ones(4, 6), torch.ones(4, 5), batch, save_kv_cache=False)
    assert backend.shapes == [(3, 2, 6), (4, 1, 6), (4, 1, 5)]
    assert backend.handle == ("cache of layer 7", False)
    layer(torch.ones(3, 12), None, None, batch)
    assert backend.shapes == [(3, 2, 6), None, None]
    assert (layer.spec.layer_id, layer.spec.scaling) == (7, 6**-0.5)
