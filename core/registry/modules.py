"""Where modules lie and what their source is, without importing any: no package above them either.

``importlib.util.find_spec`` imports the parents of a dotted name, and ``pkgutil.walk_packages``
every package it meets. Here finders are only asked, component by component.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import (
    SOURCE_SUFFIXES,
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    all_suffixes,
)
from importlib.util import decode_source, spec_from_file_location
from pkgutil import get_importer, iter_modules
from zipimport import zipimporter

from .entries import is_dotted

# No file on the path can shadow what the interpreter carries in itself.
_INTERPRETER = (BuiltinImporter, FrozenImporter)
_NOT_SUBMODULES = frozenset({"__init__", "__pycache__"})


def locate(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Where a module would be imported from; None when no finder knows it.

    Asked in turn: the interpreter's own modules, the path, every other finder of
    ``sys.meta_path`` (those of editable installs are there). One that raises has not found it.

    Args:
        name: dotted name; one that is not dotted identifiers is not found.
        path: places to search for its first component, as ``sys.path``.
    """
    if not is_dotted(name):
        return None
    parts = name.split(".")
    spec: ModuleSpec | None = None
    places: Sequence[str] | None = path
    for size in range(1, len(parts) + 1):
        if places is None:  # a plain module has nothing below it
            return None
        spec = _find(".".join(parts[:size]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return spec


def source_of(spec: ModuleSpec) -> str | None:
    """Source text, decoded as its encoding line says; None for a module without any.

    Raises:
        Exception: whatever the loader meets: a file that cannot be read, bytes that are not in
            the encoding declared, an encoding that is not known.
    """
    read: Callable[[str], bytes] | None = getattr(spec.loader, "get_data", None)
    if read is None or spec.origin is None or not spec.origin.endswith(tuple(SOURCE_SUFFIXES)):
        return None
    return decode_source(read(spec.origin))


def submodules(spec: ModuleSpec) -> Iterator[tuple[str, ModuleSpec]]:
    """Every module at any depth below a package, sorted, a package before what it holds.

    A folder without ``__init__`` is a package too. Each folder is walked once: a link to a folder
    inside the tree is left out in favour of the folder, so links cannot make a loop.
    """
    walked = set(_folders(spec))
    tops = [os.path.realpath(place) for place in spec.submodule_search_locations or ()]
    pending = _children(spec)
    while pending:
        found = pending.pop()
        folders = _folders(found)
        if folders and (walked.issuperset(folders) or _is_link_to(found, tops)):
            continue
        walked.update(folders)
        yield found.name, found
        pending += _children(found)


def _children(spec: ModuleSpec) -> list[ModuleSpec]:
    """Modules directly below a package, last name first."""
    places = list(spec.submodule_search_locations or ())
    names = {name for place in places for name in _names_in(place)}
    found = (_find(f"{spec.name}.{name}", places) for name in sorted(names, reverse=True))
    return [child for child in found if child is not None]


def _names_in(place: str) -> set[str]:
    """Names that may be modules in one place of a package."""
    if not os.path.isdir(place):
        return {module.name for module in iter_modules([place])}
    suffixes = tuple(all_suffixes())
    try:
        items = os.listdir(place)
    except OSError:  # the import system, too, takes a folder it may not read for an empty one
        return set()
    names = {item.partition(".")[0] for item in items if "." not in item or item.endswith(suffixes)}
    return set(filter(str.isidentifier, names)) - _NOT_SUBMODULES


def _folders(spec: ModuleSpec) -> list[object]:
    """What the places of a package are, whatever path leads there; empty for a plain module."""
    return [_identity(place) for place in spec.submodule_search_locations or ()]


def _identity(place: str) -> object:
    try:
        found = os.stat(place)
    except (OSError, ValueError):  # inside a zip file; a name that no folder can have
        return place
    return found.st_dev, found.st_ino


def _is_link_to(spec: ModuleSpec, tops: Sequence[str]) -> bool:
    """Whether every place of a package is a link to a folder at, below or above some others."""
    for place in spec.submodule_search_locations or ():
        real = os.path.realpath(place) if os.path.islink(place) else ""
        if not real or not any(_holds(top, real) or _holds(real, top) for top in tops):
            return False
    return True


def _holds(folder: str, other: str) -> bool:
    return os.path.join(other, "").startswith(os.path.join(folder, ""))


def _find(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """One component, its parent known by the places where it keeps its modules."""
    parent = places if "." in name else None
    others = [finder for finder in sys.meta_path if finder not in (*_INTERPRETER, PathFinder)]
    return (
        _first_answer(_INTERPRETER, name, parent)
        or _on_path(name, places)
        or _first_answer(others, name, parent)
    )


def _first_answer(
    finders: Iterable[object], name: str, parent: Sequence[str] | None
) -> ModuleSpec | None:
    for finder in finders:
        spec = _ask(getattr(finder, "find_spec", None), name, parent)
        if spec is not None:
            return spec
    return None


def _on_path(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """What ``PathFinder`` finds; for a namespace below another it needs the parent imported."""
    portions: list[str] = []
    for place in places:
        spec = _ask(_in_place, name, place)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _in_place(name: str, place: str) -> ModuleSpec | None:
    finder = get_importer(place or os.getcwd())
    if finder is None:
        return None
    try:
        return finder.find_spec(name)
    except (SyntaxError, ValueError):  # a zip file's finder compiles what it has found
        return _in_zip(finder, name, place) if isinstance(finder, zipimporter) else None


def _in_zip(finder: zipimporter, name: str, place: str) -> ModuleSpec | None:
    """A module of a zip file that is there and cannot be compiled."""
    tail = name.rpartition(".")[2]
    file = f"{tail}/__init__.py" if finder.is_package(name) else f"{tail}.py"
    return spec_from_file_location(name, os.path.join(place, file), loader=finder)


def _ask(
    question: Callable[..., ModuleSpec | None] | None, name: str, where: object
) -> ModuleSpec | None:
    """A finder's answer. One that raises, or cannot be asked, has not found the module."""
    try:
        return None if question is None else question(name, where)
    except Exception:
        return None
