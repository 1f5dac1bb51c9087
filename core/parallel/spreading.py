"""spread: tensors of one rank to its whole group, where the others do not know their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ShapeError
from .group import Group

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_MAX_DIMS = 4
_ABSENT = -1


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
        ShapeError: a dtype or a number of dimensions that the first message has no room for.
    """
    if group.size == 1:
        return list(tensors)
    mine = group.rank == src
    rows = [_row(each if mine else None) for each in tensors]
    header = group.broadcast(torch.tensor(rows, dtype=torch.int64, device=device), src)
    found: list[Tensor | None] = []
    for own, row in zip(tensors, header.tolist(), strict=True):
        if row[0] == _ABSENT:
            found.append(None)
            continue
        here = (
            own if mine else torch.empty(row[2 : 2 + row[1]], dtype=_DTYPES[row[0]], device=device)
        )
        assert here is not None
        found.append(group.broadcast(here, src))
    return found


def _row(tensor: Tensor | None) -> list[int]:
    """dtype, number of dimensions, sizes; padded."""
    if tensor is None:
        return [_ABSENT] * (2 + _MAX_DIMS)
    if tensor.dtype not in _DTYPES or tensor.dim() > _MAX_DIMS:
        raise ShapeError(
            f"a tensor of {tensor.dtype} {list(tensor.shape)} cannot be spread over a group; "
            f"dtypes are {', '.join(map(str, _DTYPES))}, and at most {_MAX_DIMS} dimensions"
        )
    padding = [0] * (_MAX_DIMS - tensor.dim())
    return [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding]
