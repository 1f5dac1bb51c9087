"""Row ranges: every row has its place on every rank at every depth, whatever the counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import BoundaryError
from archzoo.parallel import Topology
from archzoo.parallel.axes import Axes
from archzoo.parallel.links import CostTable, Link
from archzoo.parallel.placement import Term
from archzoo.parallel.rows import Batch, RowMap

GRID = Axes.of(Topology(tp=6, attn_dp=2))
DEEP = Axes(("a", "b", "c"), (2, 3, 2), 2, ())


def test_padded_and_ragged_ranges() -> None:
    padded = RowMap.of(GRID, (5, 0), sliced=True)
    assert padded.held == (6, 6)
    assert [padded.span(rank, 0) for rank in (0, 5)] == [range(12)] * 2
    assert [padded.span(rank, 1) for rank in (0, 2, 3, 5)] == [range(6)] * 2 + [range(6, 12)] * 2
    assert [padded.span(rank, 2) for rank in range(6)] == [range(i, i + 2) for i in range(0, 12, 2)]
    ragged = RowMap.of(GRID, (5, 1), ragged=True, sliced=True)
    assert ragged.held == (6, 3) and ragged.span(4, 2) == range(7, 8)
    assert RowMap.of(GRID, (5, 0), ragged=True).held == (5, 0)
    assert RowMap.of(GRID, (5, 0), ragged=True).sizes(0) == (5, 5, 0)
    assert padded.real(2, 2) == (slice(0, 1),) and padded.real(5, 2) == ()
    assert ragged.real(0, 0) == (slice(0, 5), slice(6, 7))


counts = st.tuples(*[st.integers(0, 9)] * 6)


@settings(deadline=None)
@given(counts, st.booleans())
def test_slices_tile_their_group_and_groups_tile_all(counts: tuple[int, ...], ragged: bool) -> None:
    rows = RowMap.of(DEEP, counts, ragged=ragged, sliced=True)
    assert len(rows.span(0, 0)) == sum(rows.held) and (ragged or len(set(rows.held)) == 1)
    for depth in range(4):
        spans = [rows.span(rank, depth) for rank in range(12)]
        seen = sorted({(span.start, span.stop) for span in spans if span})
        assert list(itertools.chain(*(range(*span) for span in seen))) == list(rows.span(0, 0))
        real = {
            span.start + i
            for rank, span in enumerate(spans)
            for cut in rows.real(rank, depth)
            for i in range(cut.start, cut.stop)
        }
        assert len(real) == sum(counts)
        for rank, span in enumerate(spans):
            assert rows.sizes(rank)[depth] == len(span)
            for outer in range(depth + 1):
                assert rows.span(rank, outer)[rows.cut(rank, outer, depth)] == span


@settings(deadline=None)
@given(counts, st.booleans())
def test_a_batch_is_never_smaller_than_its_rows(counts: tuple[int, ...], ragged: bool) -> None:
    rows = RowMap.of(DEEP, counts, ragged=ragged, sliced=True)
    estimate = Batch.bucket(counts, ragged=ragged).sizes(DEEP).rows
    for rank in range(12):
        assert all(a <= b for a, b in zip(rows.sizes(rank)[2:], estimate[2:], strict=True))
        if not ragged:
            assert all(a <= b for a, b in zip(rows.sizes(rank), estimate, strict=True))


def test_counts_that_do_not_fit() -> None:
    for counts in ((1,), (1, 2, 3), (1, -1)):
        with pytest.raises(
            BoundaryError, match="one count >= 0 for each of the 2 attention groups"
        ):
            RowMap.of(GRID, counts)
    with pytest.raises(BoundaryError, match="5 rows .* into 3 equal slices.*sliced=True"):
        RowMap.of(GRID, (5, 5)).span(0, 2)


def test_axes_of_topologies() -> None:
    assert Axes.of(Topology()).groups == ((0, 0, "tp"),)
    for topology, names in (
        (Topology(tp=3), ("attn_tp",)),
        (Topology(tp=3, attn_dp=3), ("attn_dp",)),
        (Topology(tp=6, attn_dp=3), ("attn_dp", "attn_tp")),
    ):
        axes = Axes.of(topology)
        assert axes.names == names and axes.group(0, axes.count) == "tp"
    assert (GRID.group(0, 1), GRID.group(1, 2)) == ("attn_dp", "attn_tp")
    assert [GRID.digits(rank) for rank in (0, 2, 3)] == [(0, 0), (0, 2), (1, 0)]
    with pytest.raises(BoundaryError, match="no group spans axes 0 to 2"):
        DEEP.group(0, 2)
    assert (
        Term(1, 1, "mlp").letters(GRID) == "SP[mlp]"
        and Term(0, 0).letters(Axes.of(Topology())) == "-"
    )


def test_a_group_is_as_slow_as_its_slowest_axis() -> None:
    table = CostTable(Link(5, 10**15), (("a", Link(7, 10**14)),))
    assert table.meeting("all_gather", ("b",), 4, 100) == 5 + 300
    assert table.meeting("reduce_scatter", ("b",), 4, 100) == 5 + 75
    assert table.meeting("all_reduce", ("b",), 4, 100) == 5 + 150
    assert table.meeting("all_reduce", ("a", "b"), 4, 100) == 7 + 1500
    assert table.meeting("send", ("pp",), 2, 100) == 5 + 100
