"""Where the metadata of installed distributions lies, read file by file.

Folders on a path are listed here. ``importlib.metadata`` does the same, but its import alone (an
email parser, zip files, csv) takes a third of what finding a model may take with 500 plugins
installed, so it is asked only for what is no folder: zip archives, and finders of others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class Metadata(Protocol):
    """The metadata of one distribution in one place.

    Attributes:
        name: of its folder, ``archzoo_llama-1.0.dist-info``; empty when a finder has none.
        path: its folder; empty likewise.
        place: what holds that folder.
    """

    name: str
    path: str
    place: str

    def read(self, filename: str) -> str:
        """Text of one of its files, of itself where it is a file; empty when there is none.

        Args:
            filename: inside the folder; empty for the metadata that is a file itself.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
            OSError: it is there and cannot be read.
        """
        ...

    def locate(self, relative: str) -> str:
        """Where an installed file lies.

        Args:
            relative: as its RECORD spells it.
        """
        ...


class Folder:
    """Metadata in a folder on the path.

    Args:
        place: the folder on the path that it lies in.
        name: its own name.
    """

    __slots__ = ("name", "path", "place")

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name
        self.path = os.path.join(place, name)

    def read(self, filename: str) -> str:
        """As ``Metadata`` says."""
        try:
            # Unbuffered: a text or buffered object costs more than the reading.
            with open(f"{self.path}/{filename}" if filename else self.path, "rb", 0) as file:
                text = file.read().decode()
        except _ABSENT:
            return ""
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

    def locate(self, relative: str) -> str:
        """As ``Metadata`` says."""
        return os.path.join(self.place, relative)


class Foreign:
    """Metadata that ``importlib.metadata`` reads: in an archive, or of somebody's own finder.

    Args:
        distribution: what it gave.
    """

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        # The only way to learn the folder's name, and two copies of one distribution apart.
        self.path = str(getattr(distribution, "_path", "")).rstrip("/")
        self.place, self.name = os.path.split(self.path)

    def read(self, filename: str) -> str:
        """As ``Metadata`` says."""
        return self._distribution.read_text(filename) or ""

    def locate(self, relative: str) -> str:
        """As ``Metadata`` says."""
        return str(self._distribution.locate_file(relative))


def find_metadata(path: Sequence[str]) -> Iterator[Metadata]:
    """The metadata of every distribution, place by place; copies are not told apart.

    Args:
        path: places to search, as ``sys.path``.
    """
    for place in path:
        if not isinstance(place, str):  # imports pass over such an entry too
            continue
        if place.endswith(".egg") or os.path.isfile(place):
            yield from _of_finder(PathFinder, [place])
            continue
        for name in _listed(place):
            if name.lower().endswith((".dist-info", ".egg-info")):
                yield Folder(place, name)
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_distributions"):
            yield from _of_finder(finder, path)


def _of_finder(finder: Any, path: Sequence[str]) -> Iterator[Foreign]:
    from importlib.metadata import DistributionFinder  # rarely needed, and slow to import

    context = DistributionFinder.Context(path=list(path))
    yield from map(Foreign, finder.find_distributions(context))


def _listed(place: str) -> list[str]:
    try:
        return os.listdir(place or ".")
    except OSError:
        return []
