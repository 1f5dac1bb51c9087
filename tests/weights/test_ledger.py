from __future__ import annotations

import torch
from calls import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.weights import Ledger

SHAPE = (5, 4, 3)
interval = st.lists(st.integers(0, 5), min_size=2, max_size=2).map(sorted)


def box_in(shape):
    return st.tuples(
        *(interval.map(lambda pair, n=n: (min(pair[0], n), min(pair[1], n))) for n in shape)
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3).flatmap(
    lambda dims: st.tuples(st.just(SHAPE[:dims]), st.lists(box_in(SHAPE[:dims]), max_size=12))
))  # fmt: skip
def test_boxes_agree_with_a_bitmap(case):
    shape, boxes = case
    ledger, filled = Ledger(), torch.zeros(shape, dtype=torch.bool)
    for number, box in enumerate(boxes):
        at = tuple(slice(*pair) for pair in box)
        rival = ledger.write("x", box, f"t{number}")
        assert (rival is not None) == bool(filled[at].any())
        if rival is None:
            filled[at] = True
    assert ledger.unwritten("x", shape) == int((~filled).sum())


def test_the_rival_is_named():
    ledger = Ledger()
    assert ledger.write("x", ((0, 4),), "a") is None
    assert ledger.write("x", ((4, 6),), "b") is None
    assert ledger.write("x", ((5, 9),), "c") == "b"
    assert ledger.write("y", ((5, 9),), "c") is None
    assert ledger.parameters == ("x", "y")
    assert ledger.written("x") == (((0, 4),), ((4, 6),))


def test_scalars():
    ledger = Ledger()
    assert ledger.unwritten("x", ()) == 1
    assert ledger.write("x", (), "a") is None
    assert ledger.write("x", (), "b") == "a"
    assert ledger.unwritten("x", ()) == 0


def test_boxes_outside_prove_nothing():
    for box in (((0, 5),), ((-1, 3),), ((0, 2), (0, 2))):
        ledger = Ledger()
        ledger.write("x", box, "a")
        assert ledger.unwritten("x", (4,)) == 4


def test_empty_shards_are_known_and_cover_nothing():
    ledger = Ledger()
    ledger.touch("x")
    ledger.write("y", ((2, 2),), "a")
    assert ledger.parameters == ("x", "y")
    assert ledger.unwritten("x", (0, 3)) == 0
    assert ledger.unwritten("y", (2,)) == 2


def test_reads_are_kept():
    ledger = Ledger()
    ledger.read("t", ((0, 1),))
    ledger.read("t", ((1, 2),))
    assert ledger.reads == {"t": [((0, 1),), ((1, 2),)]}


def test_many_experts_are_cheap():
    def write(experts):
        ledger = Ledger()
        for expert in range(experts):
            for half in range(2):
                box = ((expert, expert + 1), (half * 7, half * 7 + 7), (0, 5))
                assert ledger.write("x", box, "t") is None
        assert ledger.unwritten("x", (experts, 14, 5)) == 0

    assert calls_of(lambda: write(1024)) < 5 * calls_of(lambda: write(256))
