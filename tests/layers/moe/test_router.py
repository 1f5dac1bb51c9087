from __future__ import annotations

import pytest
import torch

from archzoo.context import BuildContext
from archzoo.errors import ShapeError
from archzoo.layers.moe import TopKRouter
from archzoo.layers.moe.router import choose


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_the_likeliest_experts_with_their_probabilities(top_k: int, renormalize: bool) -> None:
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * 3
    routes = choose(logits, top_k, renormalize)
    probabilities = logits.double().exp() / logits.double().exp().sum(-1, keepdim=True)
    values, experts = probabilities.topk(top_k)
    if renormalize:
        values = values / values.sum(-1, keepdim=True)
    assert torch.equal(routes.experts, experts)
    torch.testing.assert_close(routes.weights.double(), values, rtol=1e-6, atol=1e-7)
    total = routes.weights.sum(-1)
    assert bool((total < 1 - 1e-6).any()) != (renormalize or top_k == 8)


def test_of_equal_experts_the_first_ones_win_in_every_batch() -> None:
    logits = torch.zeros(300, 64)
    logits[:, 40] = 1
    wanted = torch.tensor([40, 0, 1, 2]).expand(300, 4)
    assert torch.equal(choose(logits, 4, True).experts, wanted)
    assert torch.equal(choose(logits[:1], 4, True).experts, wanted[:1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_choice_and_weights_are_in_float32(dtype: torch.dtype) -> None:
    """Logits that a softmax in the model's own dtype could not tell apart."""
    logits = torch.full((1, 64), 0.25, dtype=dtype)
    logits[0, 63] = 0.25 * (1 + torch.finfo(dtype).eps)
    routes = choose(logits, 1, False)
    assert routes.experts.tolist() == [[63]] and routes.weights.dtype is torch.float32
    assert routes.weights.item() == pytest.approx(
        logits.double().softmax(-1).max().item(), rel=1e-6
    )
    assert logits.softmax(-1).unique().numel() == 1, "the case is one that needs float32"
    assert choose(logits.double(), 1, False).weights.dtype is torch.float64


def test_rows_of_nan_choose_experts_that_exist_and_disturb_no_other_row() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    alone = choose(logits[2:3], 2, True)
    logits[[0, 1, 3]] = torch.nan
    routes = choose(logits, 2, True)
    assert routes.experts.min() >= 0 and routes.experts.max() < 5
    assert torch.equal(routes.experts[2:3], alone.experts)
    assert torch.equal(routes.weights[2:3], alone.weights)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    routes = choose(torch.randn(rows, 5), 2, True)
    assert routes.experts.shape == routes.weights.shape == (rows, 2)


@pytest.mark.parametrize("top_k", [0, 6])
def test_more_experts_for_a_row_than_there_are(top_k: int) -> None:
    with pytest.raises(ShapeError, match=rf"m\.gate: num_experts_per_tok={top_k} of num_experts=5"):
        TopKRouter(4, 5, top_k, True, ctx=BuildContext.of(), prefix="m.gate")
