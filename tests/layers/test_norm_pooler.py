"""RMSNorm and Pooler against plain formulas."""

from __future__ import annotations

import pytest
import torch

from archzoo.context import BuildContext
from archzoo.errors import InputError
from archzoo.forward import PoolingRequest, RequestRows
from archzoo.layers.norm import RMSNorm
from archzoo.layers.pooler import Pooler, PoolingType


def norm_of(width: int, dtype: torch.dtype, eps: float = 1e-5) -> RMSNorm:
    norm = RMSNorm(width, eps, ctx=BuildContext.of(dtype=dtype, poison=True), prefix="n")
    norm.weight.data.copy_(torch.linspace(0.5, 1.5, width))
    return norm


def plain_rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (5, 8), (2, 3, 8)])
def test_rms_norm_and_its_fused_addition(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    norm = norm_of(8, dtype)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    before = x.clone(), residual.clone()
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-6
    want = plain_rms(x, norm.weight, 1e-5)
    torch.testing.assert_close(norm(x).double(), want, rtol=tolerance, atol=tolerance)
    out, total = norm(x, residual)
    assert torch.equal(total, x + residual) and out.dtype is dtype
    want = plain_rms(total, norm.weight, 1e-5)
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1]), "inputs changed"


def test_eps_counts_for_small_rows() -> None:
    tiny = torch.full((1, 8), 1e-4)
    assert not torch.allclose(
        norm_of(8, torch.float32, 1e-5)(tiny), norm_of(8, torch.float32, 1e-12)(tiny)
    )


ROWS = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
REQUESTS = RequestRows.of([0, 1, 2], [0, 0, 0], [3, 1, 2])


@pytest.mark.parametrize(
    ("pooling", "want"),
    [
        (PoolingType.LAST, torch.stack([ROWS[2], ROWS[3], ROWS[5]])),
        (PoolingType.CLS, torch.stack([ROWS[0], ROWS[3], ROWS[4]])),
        (PoolingType.MEAN, torch.stack([ROWS[:3].mean(0), ROWS[3], ROWS[4:].mean(0)])),
    ],
)
def test_pooling_takes_real_rows(pooling: PoolingType, want: torch.Tensor) -> None:
    padded = torch.cat([ROWS, torch.full((2, 8), float("nan"))])
    raw = Pooler(pooling)(padded, REQUESTS, PoolingRequest((0, 1, 2), normalize=False))
    torch.testing.assert_close(raw, want)
    unit = Pooler(pooling)(padded, REQUESTS, PoolingRequest((2, 0)))
    picked = want[[2, 0]]
    torch.testing.assert_close(unit, picked / picked.norm(dim=-1, keepdim=True))


def test_dimensions_are_cut_before_normalising() -> None:
    out = Pooler()(ROWS, REQUESTS, PoolingRequest((0,), dimensions=3))
    torch.testing.assert_close(out[0], ROWS[2, :3] / ROWS[2, :3].norm())


def test_rows_come_as_the_model_computed_them() -> None:
    narrow = ROWS.bfloat16()
    assert torch.equal(Pooler().rows(narrow, REQUESTS, (2, 1)), narrow[[5, 3]])
    vectors = Pooler().vectors(narrow[:1], PoolingRequest((0,), normalize=False))
    assert vectors.dtype is torch.float32 and torch.equal(vectors, narrow[:1].float())


@pytest.mark.parametrize("dimensions", [0, -1, 9])
def test_dimensions_outside_the_width_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match=rf"dimensions={dimensions}.*8"):
        Pooler()(ROWS, REQUESTS, PoolingRequest((0,), dimensions=dimensions))


def test_last_pooling_works_over_a_cached_prefix_and_others_refuse_it() -> None:
    later = RequestRows.of([0], [4], [6])
    last = Pooler()(ROWS, later, PoolingRequest((0,), normalize=False))
    torch.testing.assert_close(last[0], ROWS[5])
    for pooling in (PoolingType.CLS, PoolingType.MEAN):
        with pytest.raises(InputError, match="4 tokens of request 0"):
            Pooler(pooling)(ROWS, later, PoolingRequest((0,)))


def test_nobody_ends_and_empty_requests() -> None:
    for pooling in PoolingType:
        assert Pooler(pooling)(ROWS, REQUESTS, PoolingRequest(())).shape == (0, 8)
        with pytest.raises(InputError, match="request 1 has no rows"):
            Pooler(pooling)(ROWS, RequestRows.of([0, 1], [0, 0], [6, 0]), PoolingRequest((1,)))
