"""Pooler: one vector for each request that ends in a forward."""

from __future__ import annotations

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
        return self.vectors(self.rows(hidden_states, requests, wanted.requests), wanted)

    def vectors(self, rows: Tensor, wanted: PoolingRequest) -> Tensor:
        """(P, D) pooled rows to vectors: cut, then scaled to length 1 where that is wanted."""
        pooled = at_least_float32(rows)
        pooled = cut_dimensions(pooled, wanted.dimensions)
        return F.normalize(pooled, dim=-1) if wanted.normalize else pooled

    def rows(self, hidden_states: Tensor, requests: RequestRows, ending: Sequence[int]) -> Tensor:
        """(P, D): the pooled row of each request that ends here, as the model computed it.

        Raises:
            InputError: a first row or a mean wanted of a request whose first rows were in an
                earlier forward; a request without rows here.
        """
        index = self.index(requests, ending)
        if index is None:
            return self._means(hidden_states, requests, ending)
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

    def _means(self, hidden_states: Tensor, requests: RequestRows, ending: Sequence[int]) -> Tensor:
        starts = [0, *accumulate(requests.extend_seq_lens_cpu)]
        exact = torch.promote_types(hidden_states.dtype, torch.float32)
        means = [hidden_states[starts[i] : starts[i + 1]].mean(0, dtype=exact) for i in ending]
        return torch.stack(means) if means else hidden_states.new_zeros(0, hidden_states.shape[-1])

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
