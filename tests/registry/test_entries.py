"""entry_points.txt, line by line."""

from __future__ import annotations

import pytest

from archzoo.registry import Group, ReasonCode
from archzoo.registry.entries import Entry, parse_entries, strange_groups

GROUP = Group.MODELS


def parse(*lines: str) -> tuple[tuple[Entry, ...], int]:
    entries, faults = parse_entries("\n".join(lines), GROUP)
    assert all(fault.code is ReasonCode.ENTRY_POINT_INVALID for fault in faults)
    return entries, len(faults)


def test_only_the_group_asked_for() -> None:
    entries, faults = parse(
        "[console_scripts]", "x = y:z", "nonsense", "[archzoo.models_too]", "A = a:A",
        "[archzoo.models]", "B = b.c:D.E", "[archzoo.plugins]", "C = c:C",
    )  # fmt: skip
    assert entries == (Entry("B", "b.c", "D.E"),)
    assert faults == 0


def test_blank_lines_comments_and_spaces() -> None:
    entries, faults = parse("", "# c", "[ archzoo.models ]", " ; c", "  A=a:A  ", "", "B  =  b : B")
    assert [entry.name for entry in entries] == ["A", "B"] and faults == 0


def test_empty_file_and_empty_section() -> None:
    assert parse("") == ((), 0)
    assert parse("[archzoo.models]") == ((), 0)


def test_case_and_order_of_names_are_kept() -> None:
    entries, _ = parse("[archzoo.models]", "bA = a:A", "BA = a:A")
    assert [entry.name for entry in entries] == ["bA", "BA"]


@pytest.mark.parametrize(
    ("listed", "extras"),
    [
        ("[fla]", ("fla",)),
        (" [flash-attn]", ("flash-attn",)),
        (" [Flash_Attn, a.b ,fla]", ("a-b", "fla", "flash-attn")),
        ("[]", ()),
        (" [ ]", ()),
    ],
)
def test_extras_by_the_rules_of_packaging(listed: str, extras: tuple[str, ...]) -> None:
    (entry,), faults = parse("[archzoo.models]", f"A = a:A{listed}")
    assert entry == Entry("A", "a", "A", extras) and faults == 0


@pytest.mark.parametrize(
    "target",
    ["", "a", "a:", ":A", "a:A:B", "a b:A", ".a:A", "a..b:A", "a:A.", "a:1A", "a/b:A", "a:A [",
     "a:A [x", "a:A [x]]", "a:A [x y]", "a:A [,]", "a:A [x;y]", "a:A junk", "import os; a:A"],
)  # fmt: skip
def test_bad_target_costs_only_its_line(target: str) -> None:
    (bad, good), faults = parse("[archzoo.models]", f"A = {target}", "B = b:B")
    assert bad.name == "A" and bad.module == "" and faults == 0
    assert bad.fault is not None and bad.fault.code is ReasonCode.ENTRY_POINT_INVALID
    assert repr(target) in bad.fault.problem
    assert good == Entry("B", "b", "B")


@pytest.mark.parametrize("line", ["no equals sign", "= a:A", "="])
def test_line_without_a_name(line: str) -> None:
    entries, faults = parse("[archzoo.models]", line, "B = b:B")
    assert entries == (Entry("B", "b", "B"),) and faults == 1


@pytest.mark.parametrize(
    "header", ["[archzoo.models", "\ufeff[archzoo.models]", "[[archzoo.models]]"]
)
def test_broken_header_of_the_group_is_told(header: str) -> None:
    entries, faults = parse_entries(f"{header}\nA = a:A\n", GROUP)
    assert entries == () and len(faults) == 1
    assert "line 1" in faults[0].problem and repr(header) in faults[0].problem


def test_broken_header_ends_the_section_before_it() -> None:
    entries, _ = parse("[archzoo.models]", "A = a:A", "[console_scripts", "B = b:B")
    assert [entry.name for entry in entries] == ["A"]


def test_exact_repeat_is_one_entry_and_another_target_a_fault() -> None:
    same, _ = parse("[archzoo.models]", "A = a:A", "A = a : A")
    assert same == (Entry("A", "a", "A"),)
    (twice,), _ = parse("[archzoo.models]", "A = a:A", "A = b:B", "A = a:A")
    assert twice.fault is not None and "'A' is listed twice" in twice.fault.problem


@pytest.mark.parametrize("group", list(Group))
def test_a_module_alone_is_a_target_where_no_class_is_named(group: Group) -> None:
    (entry,), faults = parse_entries(f"[{group}]\nx = pkg.hooks\n", group)
    assert faults == ()
    if group.names_classes:
        assert entry.fault is not None and "is not 'module:Class'" in entry.fault.problem
    else:
        assert entry == Entry("x", "pkg.hooks")


def test_bad_target_of_a_hook_group_says_what_is_wanted() -> None:
    (entry,), _ = parse_entries("[archzoo.plugins]\nx = not-a-module\n", Group.PLUGINS)
    assert entry.fault is not None and "is not 'module'" in entry.fault.problem


def test_group_under_archzoos_prefix_that_is_none_is_a_typing_error() -> None:
    faults = strange_groups("[archzoo.model]\nA = a:A\n[archzoo.models]\n[archzooo.x]\n[other]\n")
    (fault,) = faults
    assert fault.code is ReasonCode.ENTRY_POINT_INVALID
    assert "group 'archzoo.model' " in fault.problem
    assert all(group in fault.problem for group in Group)
