from __future__ import annotations

import pickle

import pytest

from archzoo.errors import CoverageError
from archzoo.weights import FAULT_KINDS, Fault, WeightReport


def faults(count):
    return tuple(Fault(f"t{n}", f"t{n}: gone") for n in range(count))


def test_a_clean_report_says_how_much():
    report = WeightReport(
        "x.safetensors", ("a", "b"), parameter_names=("p",), bytes_read=2_500_000, seconds=0.5
    )
    assert report.ok and report.faults() == {}
    report.raise_for_faults()
    assert str(report) == "x.safetensors: 2 tensors fill 1 parameters (2.5 MB in 0.50 s)"


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_is_a_fault_with_a_remedy(kind):
    report = WeightReport("x", **{kind: faults(2)})
    assert not report.ok and list(report.faults()) == [kind]
    text = str(report)
    assert text.startswith(f"x does not fill the model: 2 {FAULT_KINDS[kind][0]}")
    assert "t0: gone" in text and "t1: gone" in text and FAULT_KINDS[kind][1] in text
    with pytest.raises(CoverageError) as caught:
        report.raise_for_faults()
    assert caught.value.report is report and str(caught.value) == text


@pytest.mark.parametrize(("count", "more"), [(12, None), (13, 1), (5000, 4988)])
def test_long_lists_are_cut(count, more):
    text = str(WeightReport("x", missing=faults(count)))
    assert text.count(": gone") == 12
    assert ("... and" in text) == (more is not None)
    if more:
        assert f"... and {more} more" in text
    assert f"{count} parameters without a tensor" in text


def test_counts_are_shown():
    report = WeightReport(
        "x",
        tied={"head": "embed"},
        derived=("scale",),
        skipped={"rule": tuple("abcde")},
        converted={"float16 -> float32": 3},
        notes=("pytorch_model.bin is not read",),
    )
    text = str(report)
    for part in (
        "tied: head = embed",
        "optional, not in the checkpoint: scale",
        "skipped by rule: 5 (a, b, and 3 more)",
        "converted float16 -> float32: 3",
        "note: pytorch_model.bin is not read",
    ):
        assert part in text


def test_reports_pickle():
    report = WeightReport("x", tied={"a": "b"}, missing=faults(1))
    assert pickle.loads(pickle.dumps(report)) == report
