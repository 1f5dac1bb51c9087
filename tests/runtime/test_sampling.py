"""sample: the right distribution, and the same token whatever else is in the batch."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archzoo.errors import InputError, LogitsError, ShapeError
from archzoo.runtime.request import SamplingParams
from archzoo.runtime.sampling import sample

INF = float("inf")


def params(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
) -> SamplingParams:
    return SamplingParams(1, temperature, top_k, top_p, seed)


def counts(logits: Tensor, how: SamplingParams, draws: int = 4000) -> Tensor:
    """How often each token comes, over draws consecutive steps of one request."""
    rows = logits.expand(draws, -1)
    tokens = sample(rows, [how] * draws, range(draws))
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[-1])


def support(logits: list[float], how: SamplingParams) -> set[int]:
    return set(counts(torch.tensor(logits), how, 300).nonzero()[:, 0].tolist())


def reference_probs(logits: Tensor, how: SamplingParams) -> Tensor:
    """The same by sorting everything, in plain words."""
    probs = (logits.double() / how.temperature).softmax(-1)
    order = sorted(range(len(probs)), key=lambda token: (-probs[token].item(), token))
    order = order[: how.top_k or len(order)]
    if how.top_p < 1:
        whole = sum(probs[token].item() for token in order)
        mass, kept = 0.0, []
        for token in order:
            kept.append(token)
            mass += probs[token].item()
            if mass >= how.top_p * whole:
                break
        order = kept
    result = torch.zeros_like(probs)
    result[order] = probs[order]
    return result / result.sum()


def test_greedy_takes_the_likeliest_and_the_lower_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, 5.0], [-INF, -INF, -9.0]])
    assert sample(logits, [params(0.0)] * 3, [0] * 3) == [1, 0, 2]
    assert sample(logits, [params(1.0, top_k=1)] * 3, [0] * 3) == [1, 0, 2]


def test_no_rows() -> None:
    assert sample(torch.empty(0, 7), [], []) == []


def test_one_word_vocabulary() -> None:
    assert sample(torch.zeros(1, 1), [params(1.0, 5, 0.5)], [3]) == [0]


@pytest.mark.parametrize(
    "how",
    [
        params(1.0),
        params(0.5),
        params(2.0),
        params(1.0, top_k=3),
        params(1.0, top_p=0.7),
        params(0.8, top_k=5, top_p=0.6),
    ],
)
def test_frequencies_are_the_distribution(how: SamplingParams) -> None:
    logits = torch.tensor([1.0, 0.3, -1.0, 2.0, 0.0, 0.9, -4.0, 1.4])
    expected = reference_probs(logits, how) * 4000
    got = counts(logits, how)
    assert got[expected == 0].sum() == 0
    deviation = (got - expected).abs() / expected.clamp(min=1).sqrt()
    assert deviation.max() < 4.5, "more than 4.5 standard deviations off"


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]
    assert support(logits, params(top_p=0.4)) == {1}
    assert support(logits, params(top_p=0.5)) == {1}
    assert support(logits, params(top_p=0.51)) == {1, 2}
    assert support(logits, params(top_p=0.875)) == {0, 1, 2}, "of equals the lower id"
    assert support(logits, params(top_p=0.88)) == {0, 1, 2, 3}
    assert support([0.0] * 4, params(top_p=0.5)) == {0, 1}, "exactly reached is reached"


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.2, 0.2, 0.2)]
    assert support(logits, params(top_k=2, top_p=0.66)) == {0}
    assert support(logits, params(top_k=2, top_p=0.67)) == {0, 1}


def test_top_k_ties_go_to_lower_ids() -> None:
    assert support([1.0, 2.0, 1.0, 1.0, 1.0], params(top_k=3)) == {0, 1, 2}
    assert support([0.0] * 50, params(top_k=4)) == {0, 1, 2, 3}
    assert support([0.0] * 5, params(top_k=99)) == {0, 1, 2, 3, 4}


def test_top_p_over_a_flat_vocabulary_larger_than_the_shortlist() -> None:
    tokens = sample(torch.zeros(64, 5000), [params(top_p=0.5, seed=s) for s in range(64)], [0] * 64)
    assert max(tokens) < 2500
    assert max(tokens) > 1300, "not cut to a shortlist"


def test_a_ruled_out_token_never_comes() -> None:
    logits = [-INF, 0.0, -INF, 0.0, -INF]
    for how in (params(), params(top_k=4), params(top_p=0.99), params(50.0)):
        assert support(logits, how) == {1, 3}


@pytest.mark.parametrize("how", [params(), params(top_k=3), params(top_p=0.9), params(0.3)])
@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (1 - 2.0**-53, 3)])
def test_the_outermost_numbers_give_tokens_with_mass(
    monkeypatch: pytest.MonkeyPatch, how: SamplingParams, uniform: float, expected: int
) -> None:
    monkeypatch.setattr("archzoo.runtime.sampling._uniform", lambda params, step: uniform)
    source = torch.Generator().manual_seed(0)
    for _ in range(50):
        a, b, c = torch.randn(3, generator=source).tolist()
        logits = torch.tensor([[-INF, a, a + abs(b) / 9, a + abs(c) / 9, -INF]])
        assert sample(logits, [how], [0]) == [expected]


def test_a_tiny_temperature_is_greedy_and_a_huge_one_flat() -> None:
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(1))
    greedy = sample(logits, [params(0.0)] * 20, [0] * 20)
    assert sample(logits, [params(1e-308)] * 20, range(20)) == greedy
    assert len(support([0.0, 9.0, 3.0], params(1e30))) == 3


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 3e38]])
    assert sample(logits, [params(1e-3)], [0])[0] in (0, 2)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([1, 2, 7, 300, 1024, 1025, 3000]),
    rows=st.integers(1, 7),
)
def test_a_row_does_not_depend_on_the_batch(seed: int, vocab: int, rows: int) -> None:
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=source) * 4

    def pick(options: list[float], at: int) -> float:
        return options[(seed // 7**at) % len(options)]

    each = [
        params(
            pick([0, 0.5, 1, 3], at),
            int(pick([0, 1, 2, 2000], at + 1)),
            pick([1, 0.3, 0.999], at + 2),
            at,
        )
        for at in range(rows)
    ]
    steps = list(range(rows))
    together = sample(logits, each, steps)
    single = [sample(logits[at : at + 1], [each[at]], [at])[0] for at in range(rows)]
    assert together == single
    order = list(reversed(range(rows)))
    again = sample(logits[order], [each[at] for at in order], order)
    assert again == [together[at] for at in order]


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=12),
    top_k=st.integers(0, 13),
    top_p=st.floats(0.01, 1.0),
)
def test_what_may_come_is_what_sorting_everything_says(
    values: list[float], top_k: int, top_p: float
) -> None:
    how = params(1.0, top_k, top_p)
    allowed = set(reference_probs(torch.tensor(values), how).nonzero()[:, 0].tolist())
    # Sums in another order may fall on the other side of an exact tie with top_p.
    edge = reference_probs(torch.tensor(values), params(1.0, top_k, min(1.0, top_p + 1e-9)))
    assert support(values, how) <= allowed | set(edge.nonzero()[:, 0].tolist())


def test_seed_and_step_decide_the_token() -> None:
    logits = torch.zeros(1, 10_000)
    first = [sample(logits, [params(seed=1)], [step])[0] for step in range(20)]
    assert first == [sample(logits, [params(seed=1)], [step])[0] for step in range(20)]
    assert len(set(first)) > 15
    assert first != [sample(logits, [params(seed=2)], [step])[0] for step in range(20)]


def test_float64_logits() -> None:
    logits = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64)
    assert sample(logits, [params(0.0)], [0]) == [1]
    assert sample(logits, [params(1e-14)], [0]) == [1]


@pytest.mark.parametrize("how", [params(0.0), params(1.0), params(1.0, 2, 0.5)])
@pytest.mark.parametrize("row", [[0.0, math.nan, 1.0], [math.nan] * 3, [-INF] * 3, [0.0, INF, 1.0]])
def test_rows_without_a_choice_are_named(how: SamplingParams, row: list[float]) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], row, [2.0, 1.0, 0.0]])
    with pytest.raises(LogitsError, match=r"logits of request 8 hold NaN") as caught:
        sample(
            logits,
            [params(0.0), how, params(1.0)],
            [0] * 3,
            ["request 7", "request 8", "request 9"],
        )
    assert caught.value.rows == (1,)
    with pytest.raises(LogitsError, match="row 1"):
        sample(logits, [how] * 3, [0] * 3)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_random_without_a_seed_is_refused() -> None:
    with pytest.raises(InputError, match="without a seed"):
        sample(torch.zeros(1, 3), [SamplingParams(1, 1.0)], [0])


@pytest.mark.parametrize(("shape", "n", "steps"), [((3,), 1, 1), ((2, 3), 1, 2), ((2, 3), 2, 1)])
def test_numbers_that_do_not_match(shape: tuple[int, ...], n: int, steps: int) -> None:
    with pytest.raises(ShapeError, match=f"for {n} params and {steps} steps"):
        sample(torch.zeros(shape), [params(0.0)] * n, [0] * steps)
