"""ForwardBatch: the facts of one forward, grouped by the set of rows they speak of.

Letters: T token rows (padding included), R requests, S slots. Host integers are plain tuples
for whoever plans a forward; layers only touch tensors.

A sequence of a request is its cached prefix followed by the rows of this forward::

    seq_lens = extend_prefix_lens + extend_seq_lens       (decode: extend_seq_lens = 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..parallel.rows import GroupRows
from .backend import AttentionBackend


class ForwardMode(Enum):
    """What kind of rows a forward holds."""

    EXTEND = "extend"
    """New prompt tokens, over a cached prefix or not."""
    DECODE = "decode"
    """One token for each request."""
    MIXED = "mixed"
    """Prompt chunks and decode tokens together."""
    IDLE = "idle"
    """No rows; the rank only takes part in collectives."""
    TARGET_VERIFY = "target_verify"
    """Draft tokens to be checked: logits of every row."""
    DRAFT_EXTEND = "draft_extend"
    """A draft model catching up with accepted tokens."""


@dataclass(frozen=True)
class TokenRows:
    """Facts for each token row.

    Args:
        num_rows: T, padding included.
        num_real: rows that carry a token; the rest, at the end, is padding.
        out_cache_loc: (T',) int64, the slot each new K/V row is written to, real rows only.
        known_lens: (T,) int64, tokens of each row's sequence as far as it is known when the row is
            first computed, chunks of the prompt that come later included. Only rotary embeddings
            that depend on length read it; None where there is none.
        beside: (T, W) numbers that come with each row's id: for a draft model the hidden states of
            its target; None for every other model.
    """

    num_rows: int
    num_real: int
    out_cache_loc: Tensor
    known_lens: Tensor | None = None
    beside: Tensor | None = None


@dataclass(frozen=True)
class RequestRows:
    """Facts for each request, in row order; device tensors beside host numbers.

    Args:
        req_pool_indices: (R,) int64, the request's row of the slot table.
        seq_lens: (R,) int64, tokens with prefix, after this forward.
        extend_seq_lens: (R,) int64, query rows of this forward.
        extend_prefix_lens: (R,) int64, tokens that were in the cache before this forward.
        req_pool_indices_cpu, seq_lens_cpu, extend_seq_lens_cpu, extend_prefix_lens_cpu: the same
            numbers on the host.
    """

    req_pool_indices: Tensor
    seq_lens: Tensor
    extend_seq_lens: Tensor
    extend_prefix_lens: Tensor
    req_pool_indices_cpu: tuple[int, ...]
    seq_lens_cpu: tuple[int, ...]
    extend_seq_lens_cpu: tuple[int, ...]
    extend_prefix_lens_cpu: tuple[int, ...]

    @staticmethod
    def of(
        req_pool_indices: Sequence[int],
        extend_prefix_lens: Sequence[int],
        extend_seq_lens: Sequence[int],
        device: torch.device | str = "cpu",
        seq_lens: Sequence[int] | None = None,
    ) -> RequestRows:
        """From host numbers.

        Args:
            seq_lens: prefix + extend unless given; larger where more K/V rows than query rows
                come in, and the queries are the last rows of each sequence.

        Raises:
            InputError: lengths of the three lists differ, or a number is negative.
        """
        prefix, extend = tuple(extend_prefix_lens), tuple(extend_seq_lens)
        pool = tuple(req_pool_indices)
        total = (
            tuple(seq_lens)
            if seq_lens is not None
            else tuple(p + e for p, e in zip(prefix, extend, strict=False))
        )
        if not len(pool) == len(prefix) == len(extend) == len(total):
            raise InputError(
                f"{len(pool)} requests, {len(prefix)} prefix lengths, {len(extend)} extend lengths "
                f"and {len(total)} sequence lengths; give one of each for every request"
            )
        if any(n < 0 for n in (*pool, *prefix, *extend)):
            raise InputError(f"negative request numbers: {pool}, {prefix}, {extend}")

        def device_copy(numbers: tuple[int, ...]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        return RequestRows(
            device_copy(pool),
            device_copy(total),
            device_copy(extend),
            device_copy(prefix),
            pool,
            total,
            extend,
            prefix,
        )


@dataclass(frozen=True)
class LogprobRequest:
    """Input log-probabilities wanted from this forward.

    Args:
        rows: (L,) int64, rows whose distribution is wanted.
        targets: (L,) int64, the token each row should have predicted.
        top_k: also the k likeliest tokens of each row; 0 for none.
        token_ids: also the log-probabilities of these ids, for each row.
        temperature: logits are divided by it before the softmax; a number, or (L,) float32.
    """

    rows: Tensor
    targets: Tensor
    top_k: int = 0
    token_ids: tuple[int, ...] = ()
    temperature: float | Tensor = 1.0


@dataclass(frozen=True)
class PoolingRequest:
    """Pooled vectors wanted from this forward: one for each request that ends in it.

    Args:
        requests: indices into RequestRows of the requests that end here.
        dimensions: keep this many leading features, before normalisation; None keeps all.
        normalize: scale each vector to length 1.
        skip_rows: leading rows of each request that are left out where all its rows are pooled.
    """

    requests: tuple[int, ...]
    dimensions: int | None = None
    normalize: bool = True
    skip_rows: int = 0


@dataclass(frozen=True)
class OutputRows:
    """What leaves the model.

    Args:
        sample_rows: (S,) int64, rows whose logits are wanted; None for every real row.
        logprobs: input log-probabilities, or None.
        pooling: pooled vectors, or None.
    """

    sample_rows: Tensor | None = None
    logprobs: LogprobRequest | None = None
    pooling: PoolingRequest | None = None


@dataclass
class ForwardBatch:
    """One forward.

    Args:
        backend: serves attention.
        mode: kind of rows.
        tokens: facts for each row; None when another engine owns them.
        requests: facts for each request; None likewise.
        outputs: what leaves the model.
        plan: what ``backend.plan`` made of this batch.
        parallel: rows of every attention group; None where there is only one.
    """

    backend: AttentionBackend
    mode: ForwardMode = ForwardMode.EXTEND
    tokens: TokenRows | None = None
    requests: RequestRows | None = None
    outputs: OutputRows = field(default_factory=OutputRows)
    plan: Any = None
    parallel: GroupRows | None = None

    @staticmethod
    def external(backend: AttentionBackend) -> ForwardBatch:
        """A batch that carries no scheduler facts: the backend has its own."""
        return ForwardBatch(backend)

    @property
    def num_real(self) -> int | None:
        """Rows that carry a token, or None when another engine knows."""
        return None if self.tokens is None else self.tokens.num_real


def last_rows(extend_seq_lens: Sequence[int]) -> tuple[int, ...]:
    """Last row of each request that has one, requests laid end to end."""
    ends = accumulate(extend_seq_lens)
    return tuple(end - 1 for end, size in zip(ends, extend_seq_lens, strict=True) if size)


def default_sample_rows(mode: ForwardMode, extend_seq_lens: Sequence[int]) -> tuple[int, ...]:
    """Rows whose logits a mode needs: each request's last, or every row when verifying."""
    if mode is ForwardMode.TARGET_VERIFY:
        return tuple(range(sum(extend_seq_lens)))
    return last_rows(extend_seq_lens)
