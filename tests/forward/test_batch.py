"""ForwardBatch: row sets and what is refused about them."""

from __future__ import annotations

import pytest
import torch

from archzoo.attention import TorchAttention
from archzoo.errors import InputError
from archzoo.forward import (
    ForwardBatch,
    ForwardMode,
    KVCacheLayout,
    KVPool,
    RequestRows,
    TokenRows,
    default_sample_rows,
    last_rows,
)


@pytest.fixture
def backend() -> TorchAttention:
    return TorchAttention(KVPool(KVCacheLayout.of([], torch.float32), 1, 1, 1))


def test_request_rows_hold_the_same_numbers_on_host_and_device() -> None:
    rows = RequestRows.of([4, 0], [3, 0], [2, 7])
    for name, numbers in {
        "req_pool_indices": (4, 0),
        "extend_prefix_lens": (3, 0),
        "extend_seq_lens": (2, 7),
        "seq_lens": (5, 7),
    }.items():
        assert getattr(rows, f"{name}_cpu") == numbers
        tensor = getattr(rows, name)
        assert tuple(tensor.tolist()) == numbers
        assert tensor.dtype is torch.int64


def test_sequence_lengths_may_count_more_keys_than_queries() -> None:
    rows = RequestRows.of([0], [3], [2], seq_lens=[9])
    assert rows.seq_lens_cpu == (9,)
    assert rows.seq_lens.tolist() == [9]


def test_no_requests() -> None:
    rows = RequestRows.of([], [], [])
    assert rows.seq_lens.shape == (0,)
    assert rows.seq_lens.dtype is torch.int64
    assert rows.seq_lens_cpu == ()


@pytest.mark.parametrize(
    "facts",
    [
        ([0, 1], [0], [1]),
        ([0], [0, 0], [1]),
        ([0], [0], [1, 1]),
        ([0], [], []),
        ([0], [0], [1], [1, 2]),
        ([0], [0], [1], []),
    ],
)
def test_lists_of_different_lengths(facts: tuple[list[int], ...]) -> None:
    pool, prefix, extend, *total = facts
    with pytest.raises(InputError, match="give one of each for every request"):
        RequestRows.of(pool, prefix, extend, seq_lens=total[0] if total else None)


@pytest.mark.parametrize("facts", [([-1], [0], [1]), ([0], [-2], [3]), ([0], [3], [-1])])
def test_negative_numbers(facts: tuple[list[int], list[int], list[int]]) -> None:
    with pytest.raises(InputError, match="negative request numbers"):
        RequestRows.of(*facts)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [([], ()), ([1], (0,)), ([3, 1, 2], (2, 3, 5)), ([0, 2, 0, 0, 1], (1, 2)), ([0], ())],
)
def test_last_rows(lengths: list[int], rows: tuple[int, ...]) -> None:
    assert last_rows(lengths) == rows


@pytest.mark.parametrize("mode", ForwardMode)
def test_default_sample_rows(mode: ForwardMode) -> None:
    every = mode is ForwardMode.TARGET_VERIFY
    assert default_sample_rows(mode, [2, 0, 3]) == ((0, 1, 2, 3, 4) if every else (1, 4))
    assert default_sample_rows(mode, []) == ()


def test_an_external_batch_carries_no_facts(backend: TorchAttention) -> None:
    batch = ForwardBatch.external(backend)
    assert batch.backend is backend
    assert (batch.tokens, batch.requests, batch.num_real, batch.plan) == (None, None, None, None)


def test_num_real_leaves_padding_out(backend: TorchAttention) -> None:
    tokens = TokenRows(8, 5, torch.empty(0, dtype=torch.int64))
    assert ForwardBatch(backend, tokens=tokens).num_real == 5


def test_batches_do_not_share_their_outputs(backend: TorchAttention) -> None:
    batches = [ForwardBatch(backend), ForwardBatch(backend)]
    assert batches[0].outputs is not batches[1].outputs
    assert batches[0].mode is ForwardMode.EXTEND
