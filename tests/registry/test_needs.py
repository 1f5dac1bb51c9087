"""Lines of requirements that are read without ``packaging`` come out as it reads them."""

from __future__ import annotations

import itertools
import random

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, is_normalized_name

from archzoo.naming import is_distribution_name, normalised
from archzoo.registry import needs
from archzoo.registry.needs import UNPARSABLE, parse_need

NAMES = ["dep", "Dep_2", "a.b-c", "x", "dep.", "-dep", "dep__", "déb"]
EXTRAS = ["", "[a]", "[ B.c , a ]", "[]", "[a,]", "[a b]", "[a", "[_]"]
RANGES = [
    "", ">=1", "> 1.0 , <2.0.0", "==1.0", "!=1.0.0", "<=0.9", "~=1.0", "==1.*", "===1.0", "=1",
    "!1", "=<1", ">=1rc1", ">=1!1", ">=1,", ",>=1", "(>=1,<2)", ">=01.00", "<2 <3", "@ https://e.org/d.whl",
]  # fmt: skip
MARKERS = [
    "", "; extra == 'fla'", ';extra=="F_LA"', "; extra == 'a' ", "; extra != 'fla'", "; 'fla' == extra",
    "; extra == 'fla' and python_version >= '3'", "; extra == 'fla\"", "; extra == ''", "; python_version < '3'",
]  # fmt: skip
VERSIONS = [
    "1", "1.0", "1.0.0", "0.9", "2.0", "1.5", "01.0", "1.0rc1", "1.0.dev1", "1.0.post1", "2.0+cpu", "1!0", "banana", "",
]  # fmt: skip


def judged_by_packaging(line: str, extra: str, version: str) -> object:
    try:
        read = Requirement(line)
    except InvalidRequirement:
        return "unparsable"
    always = read.marker is None or read.marker.evaluate({"extra": ""})
    asked = read.marker is not None and read.marker.evaluate({"extra": extra})
    applies = always if not extra else not always and asked
    range_ = str(read.specifier)
    allows = not range_ or needs._contains_any(range_, version)
    extras = sorted(read.extras)
    return read.name, extras, range_, read.url or "", applies, allows


def judged_here(line: str, extra: str, version: str) -> object:
    try:
        need = parse_need(line)
    except UNPARSABLE:
        return "unparsable"
    applies = need.applies(extra)
    return need.name, list(need.extras), need.versions, need.url, applies, need.allows(version)


def test_every_spelling_is_judged_as_packaging_judges_it() -> None:
    lines = list(map("".join, itertools.product(NAMES, EXTRAS, RANGES, MARKERS)))
    random.Random(3).shuffle(lines)
    seen = {"common": 0, "other": 0, "unparsable": 0}
    for number, line in enumerate(lines[:4000]):
        extra, version = ("", "fla", "f-la", "a")[number % 4], VERSIONS[number % len(VERSIONS)]
        expected = judged_by_packaging(line, extra, version)
        assert judged_here(line, extra, version) == expected, (line, extra, version)
        kind = "unparsable" if expected == "unparsable" else "other"
        seen["common" if needs._COMMON.fullmatch(line) else kind] += 1
    assert min(seen.values()) > 100  # each way was taken


@pytest.mark.parametrize("clause", ["<", "<=", ">", ">=", "==", "!="])
def test_plain_ranges_are_compared_as_packaging_compares_them(clause: str) -> None:
    for bound, version in itertools.product(["0", "1", "1.0", "1.0.1", "1.10", "2.0.0"], VERSIONS):
        found = needs._contains(f"{clause}{bound}", version)
        assert found is needs._contains_any(f"{clause}{bound}", version), (clause, bound, version)


def test_common_lines_never_import_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked packaging")

    for name in ("_parse_any", "_contains_any", "_holds"):
        monkeypatch.setattr(needs, name, refuse)
    need = parse_need("zq-common [x, y]>=1.2 , <3; extra == 'Zq.Fla'")
    assert need.applies("zq-fla") and not need.applies("") and need.allows("2.0")
    assert need.spelled == "zq-common[x,y]<3,>=1.2"


@pytest.mark.parametrize("name", ["Flash_Attn", "a.-_b", "A", "", "é.B", "a--b", "_x"])
def test_names_are_normalised_as_packaging_does(name: str) -> None:
    assert normalised(name) == canonicalize_name(name)


@pytest.mark.parametrize("name", ["a", "A.b", "a-", "-a", "", "é", "a b", "a\n", "9", "a..b"])
def test_names_are_accepted_as_packaging_does(name: str) -> None:
    try:
        accepted = is_normalized_name(canonicalize_name(name, validate=True))
    except ValueError:
        accepted = False
    assert is_distribution_name(name) is accepted
    assert not is_distribution_name(None)
