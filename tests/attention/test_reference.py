"""The reference itself, against numbers worked out by hand and torch's own attention."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from archzoo.attention import AttentionSpec, AttentionType, reference_attention


def spec(**changes: object) -> AttentionSpec:
    facts: dict[str, object] = dict(
        layer_id=0, prefix="a", num_heads=1, num_kv_heads=1, head_dim=1, v_head_dim=1, scaling=1.0
    )
    return AttentionSpec(**{**facts, **changes})  # type: ignore[arg-type] # any field


def one_head(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)


def attend(attention: AttentionSpec, scores: list[float], position: int) -> float:
    """One query of 1 at a position over keys that are the scores and values 1, 10, 100, ..."""
    values = one_head([10.0**index for index in range(len(scores))])
    out = reference_attention(
        one_head([1.0]),
        one_head(scores),
        values,
        attention,
        torch.tensor([position]),
        torch.arange(len(scores)),
    )
    return float(out)


LOG2 = math.log(2)


@pytest.mark.parametrize(
    ("changes", "position", "expected"),
    [
        ({}, 2, (1 + 10 + 2 * 100) / 4),
        ({}, 1, 11 / 2),
        ({}, 0, 1.0),
        ({"sliding_window": 2}, 2, (10 + 2 * 100) / 3),
        ({"sliding_window": 1}, 3, 1000.0),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, 0, (1 + 10 + 200 + 1000) / 5),
        ({"attn_type": AttentionType.ENCODER_ONLY, "sliding_window": 2}, 1, (1 + 10 + 200) / 4),
        ({"scaling": 2.0}, 2, (1 + 10 + 4 * 100) / 6),
        ({"logit_cap": 1e9}, 2, (1 + 10 + 2 * 100) / 4),
        ({"logit_cap": 1e-9}, 2, (1 + 10 + 100) / 3),
    ],
)
def test_by_hand(changes: dict[str, object], position: int, expected: float) -> None:
    assert attend(spec(**changes), [0, 0, LOG2, 0], position) == pytest.approx(expected)


def test_soft_cap_by_hand() -> None:
    weight = math.exp(2 * math.tanh(0.5))
    found = attend(spec(logit_cap=2.0), [0, 1], 1)
    assert found == pytest.approx((1 + 10 * weight) / (1 + weight))


def test_heads_take_the_kv_head_of_their_group() -> None:
    q, k, v = torch.randn(5, 6, 4), torch.randn(5, 2, 4), torch.randn(5, 2, 4)
    at = torch.arange(5)
    attention = spec(num_heads=6, num_kv_heads=2, head_dim=4, v_head_dim=4, scaling=0.5)
    found = reference_attention(q, k, v, attention, at, at)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(found.float(), expected[0].transpose(0, 1), rtol=0, atol=1e-6)


def test_requests_do_not_see_each_other_and_nothing_seen_is_zero() -> None:
    rows = one_head([1.0, 2.0, 3.0])
    found = reference_attention(
        rows,
        rows[:2],
        rows[:2],
        spec(),
        torch.tensor([0, 0, 4]),
        torch.tensor([0, 0]),
        torch.tensor([7, 8, 9]),
        torch.tensor([7, 8]),
    )
    assert found.flatten().tolist() == [1.0, 2.0, 0.0]
