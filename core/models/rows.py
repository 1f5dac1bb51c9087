"""Which rows a forward computes and which of them leave it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..forward import ForwardBatch, OutputRows
from ..parallel.rows import GroupRows


class HeadRows(NamedTuple):
    """Normalised rows for the head.

    Args:
        rows: (S, D); where the head is split over several attention groups, the rows of all of
            them, padding included.
        own: those of this rank's attention group.
        aux: captured hidden states by index, (T, D) each.
    """

    rows: Tensor
    own: slice
    aux: dict[int, Tensor]


def group_rows(
    batch: ForwardBatch, num_rows: int, picked: Tensor | None, groups: int, index: int
) -> GroupRows:
    """Rows of every attention group: what the batch says, or with one group its own rows.

    Args:
        batch: the facts of the forward.
        num_rows: rows here, padding included.
        picked: rows here that leave the model; None for all real ones.
        groups: how many attention groups there are.
        index: number of the one that is here.

    Raises:
        InputError: several groups and a batch that knows only its own rows, or one that says
            something else of the rows here.
    """
    real = num_rows if batch.num_real is None else batch.num_real
    mine = (real, num_rows, real if picked is None else picked.shape[0])
    if batch.parallel is None and groups == 1:
        return GroupRows((mine[0],), (mine[1],), (mine[2],))
    given = batch.parallel or GroupRows((), (), ())
    sizes = tuple(map(len, given[:3]))
    if sizes != (groups,) * 3 or tuple(each[index] for each in given[:3]) != mine:
        raise InputError(
            f"batch.parallel is {batch.parallel}; give counts, held and selected rows of all "
            f"{groups} attention groups, equal on every rank, and for group {index} {mine}"
        )
    return given


def picked_rows(outputs: OutputRows, num_real: int, device: torch.device) -> Tensor | None:
    """Rows whose logits are wanted, then those of log-probabilities; None for every real row.

    Args:
        outputs: what the batch asks for.
        num_real: rows that carry a token.
        device: of the model.
    """
    rows, logprobs = outputs.sample_rows, outputs.logprobs
    if logprobs is None:
        return rows
    if rows is None:
        rows = torch.arange(num_real, device=device)
    return torch.cat([rows, logprobs.rows])
