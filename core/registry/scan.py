"""Installed distributions, each read on its own: what is wrong with one stays with it.

``importlib.metadata.entry_points()`` parses every file in one go and raises for all of them when
one has a bad line or is not UTF-8. Here each distribution is read alone, and a fault becomes a
record beside the others. Headers are read directly: the email parser behind
``Distribution.metadata`` would cost more than the whole budget when 500 plugins are installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .entries import Entry, parse_entries, strange_groups
from .groups import PREFIX, Group
from .provider import Reason, ReasonCode

_METADATA_FILES = ("METADATA", "PKG-INFO", "")  # wheel, egg folder, egg file
_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")


@dataclass(frozen=True)
class Installed:
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


@dataclass(frozen=True)
class Plugin:
    """A distribution that has to do with archzoo's entry-point groups.

    Args:
        key: normalised name of the distribution, as its folder spells it.
        entries: by group, its entries, one for each name.
        faults: what is wrong with it and belongs to no entry.
        source: where the rest of its metadata is read when it is asked for.
        shadowed: metadata folders of further copies, which do not count.
    """

    key: str
    entries: Mapping[Group, tuple[Entry, ...]]
    faults: tuple[Reason, ...]
    source: Distribution
    shadowed: tuple[str, ...] = field(default=())

    @cached_property
    def installed(self) -> Installed:
        """Its metadata, read on first use."""
        return read_installed(self.source)

    @property
    def place(self) -> str:
        """The metadata folder; empty when a custom finder has none."""
        return str(_folder(self.source))

    @cached_property
    def record(self) -> dict[str, str]:
        """Files the distribution installed -> hash as its RECORD spells it, empty where none."""
        text, _ = _read_file(self.source, "RECORD")
        rows = (line.rsplit(",", 2) for line in text.splitlines())
        return {row[0].strip('"'): row[1] for row in rows if len(row) == 3}

    def installed_file(self, relative: str) -> str:
        """Where the distribution put one of its files; empty when its record lists none such.

        Args:
            relative: path inside site-packages, with forward slashes.
        """
        return str(self.source.locate_file(relative)) if relative in self.record else ""


def scan(path: Sequence[str]) -> tuple[Plugin, ...]:
    """Plugins on a path, sorted by name: folders list their files in any order.

    Of a distribution seen twice the first copy counts, as for imports, even when only a later
    copy has entries. Two metadata folders of one distribution in one place are what an
    interrupted upgrade leaves: the higher version counts and the fault is recorded.

    Args:
        path: places to search, as ``sys.path``.
    """
    copies: dict[str, list[Distribution]] = {}
    for source in distributions(path=list(path)):
        name = _folder(source).name
        # pip leaves a folder under a name with ~ when it could not delete a distribution.
        if not name.startswith("~"):
            key = canonicalize_name(_split_folder(name)[0] or read_installed(source).name)
            copies.setdefault(key, []).append(source)
    found = (_read_plugin(key, copies[key]) for key in sorted(copies))
    return tuple(plugin for plugin in found if plugin is not None)


def find_installed(name: str, path: Sequence[str]) -> Installed | None:
    """The first installed distribution of a name, in any spelling of it.

    Args:
        name: what to look for.
        path: places to search, as ``sys.path``.
    """
    sources = list(distributions(name=name, path=list(path)))
    return read_installed(_first_copy(sources)[0]) if sources else None


def read_installed(distribution: Distribution) -> Installed:
    """Headers of a distribution's metadata, up to the first empty line."""
    text, fault = "", None
    for filename in _METADATA_FILES:
        text, fault = _read_file(distribution, filename)
        if text or fault:
            break
    headers: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        headers.setdefault(name.lower(), []).append(value.strip())
    names, versions = headers.get("name", [""]), headers.get("version", [""])
    folder_name, folder_version = _split_folder(_folder(distribution).name)
    if fault is None and not (names[0] and versions[0]):
        fault = _invalid("its METADATA names no distribution or no version")
    name = names[0] or folder_name
    if folder_name and canonicalize_name(name) != canonicalize_name(folder_name):
        # pip and imports go by the folder, and so does everything here.
        fault = _invalid(f"its METADATA names {name!r}, its folder {folder_name!r}")
        name = folder_name
    return Installed(
        name=name,
        version=versions[0] or folder_version,
        requires=tuple(headers.get("requires-dist", ())),
        extras=frozenset(map(canonicalize_name, headers.get("provides-extra", ()))),
        fault=fault,
    )


def _read_plugin(key: str, sources: Sequence[Distribution]) -> Plugin | None:
    """The distribution as a plugin; None when it has nothing to do with archzoo's groups."""
    source, beside = _first_copy(sources)
    text, fault = _read_file(source, "entry_points.txt")
    if PREFIX not in text and (text or fault is None):
        return None
    entries: dict[Group, tuple[Entry, ...]] = {}
    faults = strange_groups(text)
    for group in Group:
        if group in text:
            entries[group], bad = parse_entries(text, group)
            faults += bad
    if fault is not None:
        entries = {
            group: tuple(replace(entry, fault=fault) for entry in found)
            for group, found in entries.items()
        }
        faults = () if any(entries.values()) else (fault,)
    if not any(entries.values()) and not faults:
        return None
    if beside:
        faults += (_installed_twice(key, source, beside),)
    shadowed = tuple(str(_folder(copy)) for copy in sources if copy is not source)
    return Plugin(key, entries, faults, source, shadowed)


def _first_copy(sources: Sequence[Distribution]) -> tuple[Distribution, list[Distribution]]:
    """The copy that counts, and copies that lie in the same place beside it."""
    if len(sources) == 1:
        return sources[0], []
    place = _folder(sources[0]).parent
    here = {_folder(source): source for source in sources if _folder(source).parent == place}
    best = max(here.values(), key=_version_key)
    return best, [source for source in here.values() if source is not best]


def _version_key(source: Distribution) -> tuple[Version, str]:
    name = _folder(source).name
    try:
        return Version(_split_folder(name)[1]), name
    except InvalidVersion:
        return Version("0"), name


def _installed_twice(key: str, kept: Distribution, beside: Sequence[Distribution]) -> Reason:
    others = ", ".join(_folder(copy).name for copy in beside)
    return Reason(
        ReasonCode.INSTALLED_TWICE,
        f"{_folder(kept).name} and {others} lie in one folder; the former is believed",
        f"run: pip install --force-reinstall {key}",
    )


def _read_file(source: Distribution, filename: str) -> tuple[str, Reason | None]:
    """Text of a metadata file, empty when there is none, and what is wrong with it."""
    path = getattr(source, "_path", None)
    try:
        if filename and isinstance(path, Path):
            return _read_text(f"{path}/{filename}"), None
        return source.read_text(filename) or "", None
    except UnicodeDecodeError as error:
        # The text is read all the same, so that the fault can be put to the names it concerns.
        return error.object.decode("utf-8", "replace"), _invalid(f"its {filename} is not UTF-8")
    except OSError as error:
        return "", _invalid(f"its {filename} cannot be read ({error})")


def _read_text(path: str) -> str:
    """As ``Distribution.read_text`` reads; its pathlib and text objects cost more than the rest."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read().decode()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
        return ""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _invalid(problem: str) -> Reason:
    return Reason(ReasonCode.METADATA_INVALID, problem, "reinstall or uninstall the distribution")


def _folder(distribution: Distribution) -> Path:
    """The folder that holds the metadata; empty when a custom finder has none.

    importlib.metadata tells it only through this attribute, and parsing the metadata of every
    distribution for its name, plugins or not, is what the budget does not allow.
    """
    path = getattr(distribution, "_path", "")
    return path if isinstance(path, Path) else Path(str(path))


def _split_folder(folder: str) -> tuple[str, str]:
    """Name and version that the name of a metadata folder spells."""
    match = _FOLDER.fullmatch(folder)
    return (match["name"], match["version"]) if match else (folder.rpartition(".")[0], "")
