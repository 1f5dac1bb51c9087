"""Pooler: one vector for each request that ends in a forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from ..forward import PoolingRequest, RequestRows


class PoolingType(Enum):
    """Which rows of a request make its vector."""

    LAST = "last"
    CLS = "cls"
    MEAN = "mean"
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    WEIGHTED_MEAN = "weighted_mean"

    @property
    def reads_all(self) -> bool:
        """Whether all rows of a request make its vector, not one of them."""
        return self not in (PoolingType.LAST, PoolingType.CLS)


class Pooler(nn.Module):
    """Pools real rows of each request, cuts dimensions, then normalises.

    Row numbers come from the requests' lengths, never from token ids, so a prompt that ends with
    the pad token's id pools its own last token.

    Args:
        pooling: which rows make a vector.

    Shapes:
        hidden_states: (T, D); returns (P, D) or (P, dimensions), float32 (float64 stays).
    """

    def __init__(self, pooling: PoolingType = PoolingType.LAST) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(
        self, hidden_states: Tensor, requests: RequestRows, wanted: PoolingRequest
    ) -> Tensor:
        """Vectors of the requests that end in this forward.

        Raises:
            InputError: ``dimensions`` outside 1…D; see ``rows``.
        """
        rows = self.rows(hidden_states, requests, wanted.requests, wanted.skip_rows)
        return self.vectors(rows, wanted)

    def vectors(self, rows: Tensor, wanted: PoolingRequest) -> Tensor:
        """(P, D) pooled rows to vectors: cut, then scaled to length 1 where that is wanted."""
        pooled = at_least_float32(rows)
        pooled = cut_dimensions(pooled, wanted.dimensions)
        return F.normalize(pooled, dim=-1) if wanted.normalize else pooled

    def rows(
        self,
        hidden_states: Tensor,
        requests: RequestRows,
        ending: Sequence[int],
        skip_rows: int = 0,
    ) -> Tensor:
        """(P, D): the pooled row of each request that ends here, as the model computed it.

        Args:
            hidden_states, requests: of this forward.
            ending: which requests.
            skip_rows: leading rows of each that are left out where all rows are pooled.

        Raises:
            InputError: a first row or all rows wanted of a request whose first rows were in an
                earlier forward; a request without rows here, or with none but those left out.
        """
        index = self.index(requests, ending)
        if index is None:
            return self._over_all(hidden_states, requests, ending, skip_rows)
        at = torch.tensor(index, dtype=torch.int64, device=hidden_states.device)
        return hidden_states.index_select(0, at)

    def index(self, requests: RequestRows, ending: Sequence[int]) -> list[int] | None:
        """The one row of each request that makes its vector; None where all of them do.

        Raises:
            InputError: as ``rows``.
        """
        self.check(requests, ending)
        starts = [0, *accumulate(requests.extend_seq_lens_cpu)]
        match self.pooling:
            case PoolingType.LAST:
                return [starts[i + 1] - 1 for i in ending]
            case PoolingType.CLS:
                return [starts[i] for i in ending]
        return None

    def _over_all(
        self, hidden_states: Tensor, requests: RequestRows, ending: Sequence[int], skip: int
    ) -> Tensor:
        starts = [0, *accumulate(requests.extend_seq_lens_cpu)]
        for i in ending:
            if starts[i + 1] - starts[i] <= skip:
                raise InputError(
                    f"request {i} has {starts[i + 1] - starts[i]} rows, of which the first {skip} "
                    "are its prompt's and left out; nothing to pool"
                )
        pooled = [
            self._pool_all(at_least_float32(hidden_states[starts[i] + skip : starts[i + 1]]), skip)
            for i in ending
        ]
        return (
            torch.stack(pooled) if pooled else hidden_states.new_zeros(0, hidden_states.shape[-1])
        )

    def _pool_all(self, rows: Tensor, before: int) -> Tensor:
        """(T, D) rows of a request, which follow some that are left out, to (D,)."""
        match self.pooling:
            case PoolingType.MAX:
                return rows.amax(0)
            case PoolingType.MEAN_SQRT_LEN:
                return rows.sum(0) / math.sqrt(len(rows))
            case PoolingType.WEIGHTED_MEAN:  # by position, from 1; arXiv 2202.08904
                weights = torch.arange(before + 1, before + len(rows) + 1).to(rows)
                return (rows * weights[:, None]).sum(0) / weights.sum()
        return rows.mean(0)

    def check(self, requests: RequestRows, ending: Sequence[int]) -> None:
        """Refuse what ``rows`` cannot pool, before anything is computed.

        Raises:
            InputError: see ``rows``.
        """
        for request in ending:
            self._check(request, requests)

    def _check(self, index: int, requests: RequestRows) -> None:
        if requests.extend_seq_lens_cpu[index] == 0:
            raise InputError(f"request {index} has no rows in this forward; nothing to pool")
        prefix = requests.extend_prefix_lens_cpu[index]
        if prefix and self.pooling is not PoolingType.LAST:
            raise InputError(
                f"{self.pooling.value} pooling needs all rows of a request in one forward; "
                f"{prefix} tokens of request {index} were in an earlier one: do not chunk it"
            )


def at_least_float32(rows: Tensor) -> Tensor:
    """Rows in float32; float64 stays."""
    return rows if rows.dtype is torch.float64 else rows.float()


def cut_dimensions(vectors: Tensor, dimensions: int | None) -> Tensor:
    """The leading ``dimensions`` features of (P, D) vectors.

    Raises:
        InputError: outside 1…D.
    """
    width = vectors.shape[-1]
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= width:
        raise InputError(f"dimensions={dimensions} must lie in 1…{width}, the model's width")
    return vectors[:, :dimensions]
