"""Reading one ``entry_points.txt`` line by line, so that a bad line costs only itself."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..naming import normalised
from .groups import GROUPS, PREFIX, Group
from .needs import UNPARSABLE, parse_need
from .provider import Reason, ReasonCode

_HEADER = re.compile(r"\[(?P<group>[^\[\]]+)\]")
_ANY_HEADER = re.compile(r"^\s*\[([^\[\]\n]+)\]\s*$", re.MULTILINE)
_TARGET = re.compile(
    r"(?P<module>[\w.]+)\s*(?::\s*(?P<attr>[\w.]+)\s*)?(?:\[(?P<extras>[^\[\]]*)\])?", re.ASCII
)


class Entry(NamedTuple):
    """One line of a group: a name and what it points at.

    Args:
        name: the key, an architecture in the group of models.
        module: module to import; empty when the target cannot be read.
        attr: dotted name inside the module; empty likewise, and where the module itself is meant.
        extras: normalised extras that the target needs, sorted.
        fault: why the line cannot be used.
    """

    name: str
    module: str = ""
    attr: str = ""
    extras: tuple[str, ...] = ()
    fault: Reason | None = None


def parse_entries(text: str, group: Group) -> tuple[tuple[Entry, ...], tuple[Reason, ...]]:
    """Entries of one group, and faults of lines that name no entry.

    Lines of other groups are not looked at: what they hold is their reader's concern.

    Args:
        text: content of the file.
        group: the group, its name compared exactly.
    """
    entries: list[Entry] = []
    faults: list[Reason] = []
    section: str | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        header = _HEADER.fullmatch(line)
        if header:
            section = header["group"].strip()
            continue
        if line.startswith("["):
            section = None
        name, equals, target = (part.strip() for part in line.partition("="))
        if section == group and name and equals:
            entries.append(_entry(name, target, group))
        elif section == group or (section is None and group in line):
            faults.append(_bad_line(number, line))
    return _without_repeats(entries), tuple(faults)


def strange_groups(text: str) -> tuple[Reason, ...]:
    """A fault for each group under archzoo's prefix that archzoo does not read: a typing error."""
    names = dict.fromkeys(name.strip() for name in _ANY_HEADER.findall(text))
    return tuple(
        Reason(
            ReasonCode.ENTRY_POINT_INVALID,
            f"group {name!r} of entry_points.txt is none that archzoo reads: {', '.join(GROUPS)}",
            "report it to the distribution's author",
        )
        for name in names
        if name.startswith(PREFIX) and name not in GROUPS
    )


def _entry(name: str, target: str, group: Group) -> Entry:
    match = _TARGET.fullmatch(target)
    attr = "" if match is None else match["attr"] or ""
    if match is None or not _names_something(match["module"], attr, group):
        wanted = "'module:Class'" if group.names_classes else "'module'"
        return Entry(name, fault=_bad_target(f"target {target!r} is not {wanted}"))
    try:
        extras = _extras(match["extras"])
    except UNPARSABLE:
        return Entry(name, fault=_bad_target(f"target {target!r} has a malformed list of extras"))
    return Entry(name, match["module"], attr, extras)


@lru_cache(maxsize=256)  # plugins of one kind name the same extras
def _extras(listed: str | None) -> tuple[str, ...]:
    """Normalised names out of a list such as ``fla, flash-attn``."""
    if not listed:
        return ()
    # A stand-in name has the list judged by the grammar of requirements.
    return tuple(sorted(map(normalised, parse_need(f"x[{listed}]").extras)))


def _names_something(module: str, attr: str, group: Group) -> bool:
    return is_dotted(module) and (is_dotted(attr) if attr or group.names_classes else True)


def is_dotted(name: str) -> bool:
    """Whether a name is identifiers separated by dots."""
    return all(part.isidentifier() for part in name.split("."))


def _without_repeats(entries: list[Entry]) -> tuple[Entry, ...]:
    """One entry for each name; a name with several targets is a fault, an exact repeat is not."""
    kept: dict[str, Entry] = {}
    for entry in entries:
        first = kept.setdefault(entry.name, entry)
        if first != entry:
            fault = _bad_target(f"{entry.name!r} is listed twice with different targets")
            kept[entry.name] = first._replace(fault=fault)
    return tuple(kept.values())


def _bad_target(problem: str) -> Reason:
    return Reason(ReasonCode.ENTRY_POINT_INVALID, problem, "report it to the distribution's author")


def _bad_line(number: int, line: str) -> Reason:
    return Reason(
        ReasonCode.ENTRY_POINT_INVALID,
        f"line {number} of entry_points.txt, {line!r}, is neither '[group]' nor 'name = target'",
        "report it to the distribution's author",
    )
