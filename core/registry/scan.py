"""Installed distributions, each read on its own: what is wrong with one stays with it.

``importlib.metadata.entry_points()`` parses every file in one go and raises for all of them when
one has a bad line or is not UTF-8. Here each distribution is read alone, and a fault becomes a
record beside the others. Headers are read directly: the email parser behind
``Distribution.metadata`` would cost more than the whole budget when 500 plugins are installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..naming import normalised
from .entries import Entry, parse_entries, strange_groups
from .groups import GROUPS, PREFIX, Group
from .places import Metadata, find_metadata
from .provider import Reason, ReasonCode

if TYPE_CHECKING:
    from packaging.version import Version

_METADATA_FILES = ("METADATA", "PKG-INFO", "")  # wheel, egg folder, egg file
_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")
_HEADER = re.compile(
    r"^(name|version|requires-dist|provides-extra):(.*)$", re.MULTILINE | re.IGNORECASE
)

Copies = Mapping[str, Sequence[Metadata]]
"""Normalised name of a distribution -> its metadata in every place that has one, in path order."""


class Installed(NamedTuple):
    """What one installed distribution says of itself.

    Args:
        name: as its metadata spells it, or as its folder does when the metadata is silent.
        version: likewise; empty when neither says.
        requires: its ``Requires-Dist`` lines, unparsed.
        extras: normalised names of the extras it declares.
        fault: why its metadata cannot be trusted.
    """

    name: str
    version: str = ""
    requires: tuple[str, ...] = ()
    extras: frozenset[str] = frozenset()
    fault: Reason | None = None

    @property
    def label(self) -> str:
        """Name and version, as messages give them."""
        return f"{self.name} {self.version}".rstrip()


class Plugin:
    """A distribution that has to do with archzoo's entry-point groups.

    Args:
        key: normalised name of the distribution, as its folder spells it.
        entries: by group, its entries, one for each name.
        faults: what is wrong with it and belongs to no entry.
        source: where the rest of its metadata is read when it is asked for.
        shadowed: metadata folders of further copies, which do not count.
    """

    def __init__(
        self,
        key: str,
        entries: Mapping[Group, tuple[Entry, ...]],
        faults: tuple[Reason, ...],
        source: Metadata,
        shadowed: tuple[str, ...] = (),
    ) -> None:
        self.key, self.entries, self.faults = key, entries, faults
        self.shadowed, self._source = shadowed, source

    @cached_property
    def installed(self) -> Installed:
        """Its metadata, read on first use."""
        return read_installed(self._source)

    @property
    def place(self) -> str:
        """The metadata folder; empty when a custom finder has none."""
        return self._source.path

    @cached_property
    def record(self) -> dict[str, str]:
        """Files the distribution installed -> hash as its RECORD spells it, empty where none."""
        text, _ = _read_file(self._source, "RECORD")
        rows = (line.rsplit(",", 2) for line in text.splitlines())
        return {row[0].strip('"'): row[1] for row in rows if len(row) == 3}

    def installed_file(self, relative: str) -> str:
        """Where the distribution put one of its files; empty when its record lists none such.

        Args:
            relative: path inside site-packages, with forward slashes.
        """
        return self._source.locate(relative) if relative in self.record else ""


def find_copies(path: Sequence[str]) -> dict[str, list[Metadata]]:
    """Every distribution on a path, and each place that has it.

    Args:
        path: places to search, as ``sys.path``.
    """
    copies: dict[str, list[Metadata]] = {}
    for source in find_metadata(path):
        # pip leaves a folder under a name with ~ when it could not delete a distribution.
        if not source.name.startswith("~"):
            name = _split_folder(source.name)[0] or read_installed(source).name
            copies.setdefault(normalised(name), []).append(source)
    return copies


def read_plugins(copies: Copies) -> tuple[Plugin, ...]:
    """The plugins among distributions, sorted by name: folders list their files in any order.

    Of a distribution seen twice the first copy counts, as for imports, even when only a later
    copy has entries. Two metadata folders of one distribution in one place are what an
    interrupted upgrade leaves: the higher version counts and the fault is recorded.

    Args:
        copies: from ``find_copies``.
    """
    found = (_read_plugin(key, copies[key]) for key in sorted(copies))
    return tuple(plugin for plugin in found if plugin is not None)


def read_copy(name: str, copies: Copies) -> Installed | None:
    """The copy that counts of a distribution, in any spelling of its name; None without one.

    Args:
        name: what to look for.
        copies: from ``find_copies``.
    """
    sources = copies.get(normalised(name), ())
    return read_installed(_first_copy(sources)[0]) if sources else None


def read_installed(source: Metadata) -> Installed:
    """Headers of a distribution's metadata, up to the first empty line."""
    text, fault = "", None
    for filename in _METADATA_FILES:
        text, fault = _read_file(source, filename)
        if text or fault:
            break
    headers: dict[str, list[str]] = {}
    for header, value in _HEADER.findall(text.partition("\n\n")[0]):
        headers.setdefault(header.lower(), []).append(value.strip())
    names, versions = headers.get("name", [""]), headers.get("version", [""])
    folder_name, folder_version = _split_folder(source.name)
    if fault is None and not (names[0] and versions[0]):
        fault = _invalid("its METADATA names no distribution or no version")
    name = names[0] or folder_name
    if folder_name and normalised(name) != normalised(folder_name):
        # pip and imports go by the folder, and so does everything here.
        fault = _invalid(f"its METADATA names {name!r}, its folder {folder_name!r}")
        name = folder_name
    return Installed(
        name=name,
        version=versions[0] or folder_version,
        requires=tuple(headers.get("requires-dist", ())),
        extras=frozenset(map(normalised, headers.get("provides-extra", ()))),
        fault=fault,
    )


def _read_plugin(key: str, sources: Sequence[Metadata]) -> Plugin | None:
    """The distribution as a plugin; None when it has nothing to do with archzoo's groups."""
    source, beside = _first_copy(sources)
    text, fault = _read_file(source, "entry_points.txt")
    if PREFIX not in text and (text or fault is None):
        return None
    entries: dict[Group, tuple[Entry, ...]] = {}
    faults = strange_groups(text)
    for group in GROUPS:
        if group in text:
            entries[group], bad = parse_entries(text, group)
            faults += bad
    if fault is not None:
        entries = {
            group: tuple(entry._replace(fault=fault) for entry in found)
            for group, found in entries.items()
        }
        faults = () if any(entries.values()) else (fault,)
    if not any(entries.values()) and not faults:
        return None
    if beside:
        faults += (_installed_twice(key, source, beside),)
    shadowed = tuple(copy.path for copy in sources if copy is not source)
    return Plugin(key, entries, faults, source, shadowed)


def _first_copy(sources: Sequence[Metadata]) -> tuple[Metadata, list[Metadata]]:
    """The copy that counts, and copies that lie in the same place beside it."""
    if len(sources) == 1:
        return sources[0], []
    place = sources[0].place
    here = {source.path: source for source in sources if source.place == place}
    best = max(here.values(), key=_version_key)
    return best, [source for source in here.values() if source is not best]


def _version_key(source: Metadata) -> tuple[Version, str]:
    from packaging.version import InvalidVersion, Version  # only what was installed twice needs it

    try:
        return Version(_split_folder(source.name)[1]), source.name
    except InvalidVersion:
        return Version("0"), source.name


def _installed_twice(key: str, kept: Metadata, beside: Sequence[Metadata]) -> Reason:
    others = ", ".join(copy.name for copy in beside)
    return Reason(
        ReasonCode.INSTALLED_TWICE,
        f"{kept.name} and {others} lie in one folder; the former is believed",
        f"run: pip install --force-reinstall {key}",
    )


def _read_file(source: Metadata, filename: str) -> tuple[str, Reason | None]:
    """Text of a metadata file, empty when there is none, and what is wrong with it."""
    try:
        return source.read(filename), None
    except UnicodeDecodeError as error:
        # The text is read all the same, so that the fault can be put to the names it concerns.
        return error.object.decode("utf-8", "replace"), _invalid(f"its {filename} is not UTF-8")
    except OSError as error:
        return "", _invalid(f"its {filename} cannot be read ({error})")


def _invalid(problem: str) -> Reason:
    return Reason(ReasonCode.METADATA_INVALID, problem, "reinstall or uninstall the distribution")


def _split_folder(folder: str) -> tuple[str, str]:
    """Name and version that the name of a metadata folder spells."""
    match = _FOLDER.fullmatch(folder)
    return (match["name"], match["version"]) if match else (folder.rpartition(".")[0], "")
