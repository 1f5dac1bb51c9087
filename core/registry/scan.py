"""Installed distributions, each read on its own: what is wrong with one stays with it.

``importlib.metadata.entry_points()`` parses every file in one go and raises for all of them when
one has a bad line or is not UTF-8. Here each distribution is read alone, and a fault becomes a
record beside the others. Headers are read directly: the email parser behind
``Distribution.metadata`` would cost more than the whole budget when 500 plugins are installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import PurePath

from packaging.utils import canonicalize_name

from .entries import Entry, parse_entries
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
    """A distribution that has to do with the entry-point group searched for.

    Args:
        key: normalised name of the distribution, as its folder spells it.
        entries: its entries, one for each name.
        faults: what is wrong with its entry points and belongs to no entry.
        source: where the rest of its metadata is read when it is asked for.
    """

    key: str
    entries: tuple[Entry, ...]
    faults: tuple[Reason, ...]
    source: Distribution

    @cached_property
    def installed(self) -> Installed:
        """Its metadata, read on first use."""
        return _read_installed(self.source)


def scan(group: str, path: Sequence[str]) -> tuple[Plugin, ...]:
    """Plugins of a group, in search order.

    Of a distribution seen twice the first copy counts, as for imports, even when only a later
    copy has entries in the group.

    Args:
        group: entry-point group.
        path: places to search, as ``sys.path``.
    """
    found: dict[str, Plugin | None] = {}
    for source in distributions(path=list(path)):
        folder = _folder(source)
        # pip leaves a folder under a name with ~ when it could not delete a distribution.
        if folder.startswith("~"):
            continue
        key = canonicalize_name(_split_folder(folder)[0] or _read_installed(source).name)
        if key not in found:
            found[key] = _read_plugin(key, source, group)
    return tuple(plugin for plugin in found.values() if plugin is not None)


def find_installed(name: str, path: Sequence[str]) -> Installed | None:
    """The first installed distribution of a name, in any spelling of it.

    Args:
        name: what to look for.
        path: places to search, as ``sys.path``.
    """
    for distribution in distributions(name=name, path=list(path)):
        return _read_installed(distribution)
    return None


def _read_plugin(key: str, source: Distribution, group: str) -> Plugin | None:
    """The distribution as a plugin; None when it has nothing to do with the group."""
    text, fault = _read_file(source, "entry_points.txt")
    if group not in text and (text or fault is None):
        return None
    entries, faults = parse_entries(text, group)
    if fault is not None:
        entries = tuple(replace(entry, fault=fault) for entry in entries)
        faults = () if entries else (fault,)
    return Plugin(key, entries, faults, source) if entries or faults else None


def _read_installed(distribution: Distribution) -> Installed:
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
    folder_name, folder_version = _split_folder(_folder(distribution))
    if fault is None and not (names[0] and versions[0]):
        fault = _invalid("its METADATA names no distribution or no version")
    return Installed(
        name=names[0] or folder_name,
        version=versions[0] or folder_version,
        requires=tuple(headers.get("requires-dist", ())),
        extras=frozenset(map(canonicalize_name, headers.get("provides-extra", ()))),
        fault=fault,
    )


def _read_file(distribution: Distribution, filename: str) -> tuple[str, Reason | None]:
    """Text of a metadata file, empty when there is none, and what is wrong with it."""
    try:
        return distribution.read_text(filename) or "", None
    except UnicodeDecodeError as error:
        # The text is read all the same, so that the fault can be put to the names it concerns.
        return error.object.decode("utf-8", "replace"), _invalid(f"its {filename} is not UTF-8")
    except OSError as error:
        return "", _invalid(f"its {filename} cannot be read ({error})")


def _invalid(problem: str) -> Reason:
    return Reason(ReasonCode.METADATA_INVALID, problem, "reinstall or uninstall the distribution")


def _folder(distribution: Distribution) -> str:
    """Name of the folder that holds the metadata; empty when a custom finder has none.

    importlib.metadata tells it only through this attribute, and parsing the metadata of every
    distribution for its name, plugins or not, is what the budget does not allow.
    """
    return PurePath(str(getattr(distribution, "_path", ""))).name


def _split_folder(folder: str) -> tuple[str, str]:
    """Name and version that the name of a metadata folder spells."""
    match = _FOLDER.fullmatch(folder)
    return (match["name"], match["version"]) if match else (folder.rpartition(".")[0], "")
