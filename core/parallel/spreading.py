"""spread: tensors of one rank to its whole group, where the others do not know their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ShapeError
from .group import Group

_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
)
"""All that a checkpoint stores. Their bytes are sent: no backend has a broadcast for each."""
_MAX_DIMS = 8
_ABSENT, _UNSERVED = -1, -2


def spread(
    group: Group, tensors: Sequence[Tensor | None], src: int, device: torch.device | str = "cpu"
) -> list[Tensor | None]:
    """The tensors of rank src (index in the group), on every rank (collective).

    One small broadcast tells which tensors there are, of which dtype and shape; then each follows.

    Args:
        group: who takes part.
        tensors: what src has; the others give as many entries, whose values do not matter.
        src: whose tensors.
        device: where the others want them.

    Raises:
        ShapeError: on every rank, where src has a dtype or a number of dimensions that the first
            message has no room for.
    """
    if group.size == 1:
        return list(tensors)
    mine = group.rank == src
    rows = [_row(each if mine else None) for each in tensors]
    header = group.broadcast(torch.tensor(rows, dtype=torch.int64, device=device), src)
    told: list[list[int]] = header.tolist()
    if any(row[0] == _UNSERVED for row in told):
        raise ShapeError(
            f"rank {group.ranks[src]} has a tensor that cannot be spread over group "
            f"{group.name!r}; dtypes are {', '.join(map(str, _DTYPES))}, and at most {_MAX_DIMS} "
            "dimensions"
        )
    found: list[Tensor | None] = []
    for own, row in zip(tensors, told, strict=True):
        if row[0] == _ABSENT:
            found.append(None)
            continue
        dtype, sizes = _DTYPES[row[0]], row[2 : 2 + row[1]]
        here = own if mine else torch.empty(sizes, dtype=dtype, device=device)
        assert here is not None
        sent = group.broadcast(here.detach().reshape(-1).view(torch.uint8), src)
        found.append(sent.view(dtype).view(sizes))
    return found


def _row(tensor: Tensor | None) -> list[int]:
    """dtype, number of dimensions, sizes; padded."""
    if tensor is None:
        return [_ABSENT] * (2 + _MAX_DIMS)
    if tensor.dtype not in _DTYPES or tensor.dim() > _MAX_DIMS:
        return [_UNSERVED] * (2 + _MAX_DIMS)
    padding = [0] * (_MAX_DIMS - tensor.dim())
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding]
