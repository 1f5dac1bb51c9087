"""Comparing traces: scale, NaN, shapes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from archzoo.cli.comparison import TOLERANCES, compare
from archzoo.errors import ShapeError

NAN, INF = float("nan"), float("inf")


def rows(count: int = 100, width: int = 8) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0))


def test_equal_traces() -> None:
    trace = {"layer 0": rows(), "logits": rows()}
    result = compare(trace, trace, 0.0)
    assert result.first_departure is None
    assert [each.largest for each in result.stages] == [0, 0]
    assert result.same_choice == (100, 100)


def test_figures_over_several_chunks_of_rows() -> None:
    theirs = torch.full((130, 4), 2.0)
    ours = theirs.clone()
    ours[70] += 0.5
    ours[129, 0] -= 1.5
    [stage] = compare({"layer 0": ours}, {"layer 0": theirs}, 0.3).stages
    assert stage.largest == 1.5
    assert stage.relative == pytest.approx(1.5 / 2 / 2)
    assert stage.rms == pytest.approx(2.0)
    assert not stage.agrees


def test_a_row_is_judged_by_its_own_size() -> None:
    theirs = torch.ones(3, 4)
    theirs[0] *= 1e6
    loud, quiet = theirs.clone(), theirs.clone()
    loud[0] += 1.0
    quiet[2] += 1.0
    assert compare({"layer 0": loud}, {"layer 0": theirs}, 1e-5).first_departure is None
    assert compare({"layer 0": quiet}, {"layer 0": theirs}, 0.5).first_departure is not None


def test_rows_of_zeros() -> None:
    zeros = torch.zeros(2, 4)
    assert compare({"embedding": zeros}, {"embedding": zeros}, 0.0).first_departure is None
    assert compare({"embedding": zeros + 1e-2}, {"embedding": zeros}, 1.0).first_departure


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("row", [0, 99])
@pytest.mark.parametrize("side", [0, 1])
def test_values_that_are_no_numbers_never_agree(value: float, row: int, side: int) -> None:
    pair = [{"layer 0": rows(), "logits": rows()} for _ in range(2)]
    pair[side]["layer 0"][row, 3] = value
    departure = compare(pair[0], pair[1], 1e9).first_departure
    assert departure is not None and departure.stage == "layer 0"
    assert not math.isfinite(departure.largest), "the table would show a number"


def test_logits_in_wide_dtypes_are_judged_absolutely() -> None:
    theirs = torch.full((2, 4), 100.0)
    ours = theirs + 1e-3
    assert compare({"logits": ours}, {"logits": theirs}, 2e-4).first_departure is not None
    assert compare({"layer 0": ours}, {"layer 0": theirs}, 2e-4).first_departure is None
    narrow = theirs.bfloat16()
    assert compare({"logits": ours + 1}, {"logits": narrow}, 0.1).first_departure is None


def test_likeliest_tokens_are_counted() -> None:
    theirs = torch.eye(4)
    ours = theirs.clone()
    ours[2] = torch.tensor([9.0, 0, 0, 0])
    assert compare({"logits": ours}, {"logits": theirs}, 1.0).same_choice == (3, 4)
    assert compare({"layer 0": ours}, {"layer 0": theirs}, 1.0).same_choice is None


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)], ids=str)
def test_a_row_with_nan_makes_no_choice(sides: tuple[int, ...]) -> None:
    pair = [torch.eye(4), torch.eye(4)]
    for side in sides:
        pair[side][2] = NAN
        pair[side][3, 3] = NAN  # where the likeliest token was: argmax would find it again
    assert compare({"logits": pair[0]}, {"logits": pair[1]}, 1.0).same_choice == (2, 4)


@pytest.mark.parametrize(
    "other",
    [{"layer 0": torch.ones(2, 5)}, {"layer 1": torch.ones(2, 4)}, {}],
    ids=["shape", "name", "nothing"],
)
def test_other_stages_are_refused(other: dict[str, Tensor]) -> None:
    with pytest.raises(ShapeError, match="layer 0"):
        compare({"layer 0": torch.ones(2, 4)}, other, 1.0)


def test_every_dtype_has_a_tolerance() -> None:
    from archzoo.cli.app import DType

    assert {getattr(torch, each) for each in DType} == set(TOLERANCES)
    assert TOLERANCES[torch.float32] == 2e-4
