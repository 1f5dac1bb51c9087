"""A batch that says something else than its rows is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch

from archzoo.errors import InputError
from archzoo.forward import ForwardBatch
from archzoo.models.rows import group_rows
from archzoo.parallel.rows import GroupRows


def batch(parallel: GroupRows | None) -> ForwardBatch:
    return ForwardBatch(None, parallel=parallel)  # type: ignore[arg-type]  # no attention here


def test_one_group_needs_nothing_said() -> None:
    assert group_rows(batch(None), 5, None, 1, 0) == GroupRows((5,), (5,), (5,))
    picked = torch.tensor([1, 3])
    assert group_rows(batch(None), 5, picked, 1, 0) == GroupRows((5,), (5,), (2,))
    assert group_rows(batch(None), 0, None, 1, 0) == GroupRows((0,), (0,), (0,))


@pytest.mark.parametrize(
    "given",
    [
        None,
        GroupRows((5,), (5,), (5,)),
        GroupRows((5, 2, 1), (5, 2, 1), (5, 2, 1)),
        GroupRows((2, 4), (2, 5), (2, 5)),
        GroupRows((2, 5), (2, 6), (2, 5)),
        GroupRows((2, 5), (2, 5), (2, 4)),
        GroupRows((5, 2), (5, 2), (5, 2)),
        GroupRows((2, 5), (2, 5, 0), (2, 5)),
    ],
)
def test_rows_of_several_groups_must_be_right_here(given: GroupRows | None) -> None:
    with pytest.raises(InputError, match=r"all 2 attention groups.*for group 1 \(5, 5, 5\)"):
        group_rows(batch(given), 5, None, 2, 1)


def test_right_rows_are_taken_as_they_are() -> None:
    given = GroupRows((2, 5), (6, 5), (1, 5), ragged=True)
    assert group_rows(batch(given), 5, None, 2, 1) is given
