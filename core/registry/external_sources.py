"""The source of an external package, and where its names lead."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from .external_names import VARIABLES, Binding, Imported, bindings, dotted, is_changed
from .modules import source_of, submodules
from .provider import Reason, ReasonCode


class ClassAt(NamedTuple):
    """A class as source names it: its own name, and where to take it from."""

    name: str
    module: str
    attr: str


class Sources:
    """A package's modules: read at once, each parsed when it is first asked about, once.

    Args:
        root: the package, or a plain module.
    """

    def __init__(self, root: ModuleSpec) -> None:
        """Read the source of every module; nothing is parsed yet."""
        self.faults: list[Reason] = []
        self.without_source: list[str] = []
        self._sources: dict[str, str] = {}
        self._specs = dict([(root.name, root), *submodules(root)])
        self._names: dict[str, Mapping[str, list[Binding]]] = {}
        for name, spec in self._specs.items():
            self._read(name, spec)

    def modules(self) -> tuple[str, ...]:
        """Modules that can declare something: they mention a variable, or are packages.

        A package is looked at in any case: when it cannot be parsed, nothing below it imports.
        """
        return tuple(
            name
            for name, source in self._sources.items()
            if self._is_package(name) or any(variable in source for variable in VARIABLES)
        )

    def package_of(self, module: str) -> str:
        """What relative names in a module start from; empty for a top-level plain module."""
        return module if self._is_package(module) else module.rpartition(".")[0]

    def names(self, module: str) -> Mapping[str, list[Binding]]:
        """What a module binds; nothing when it cannot be parsed, which is then a fault.

        Nothing either for a module that is outside the package, or has no source.
        """
        if module not in self._sources:
            return {}
        if module not in self._names:
            self._names[module] = self._parsed(module)
        return self._names[module]

    def class_at(self, module: str, path: tuple[str, ...]) -> ClassAt | None:
        """The class that a dotted name in a module means, through aliases and imports.

        A class from outside the package is taken from the module of the package that imports it.

        Returns:
            None when the source does not tell, or what it tells is not a class.
        """
        seen: set[tuple[str, str]] = set()
        while path and (module, path[0]) not in seen:
            seen.add((module, path[0]))
            bound = self.names(module).get(path[0], [])
            source = bound[0].source if len(bound) == 1 else None
            if isinstance(source, ast.ClassDef):
                return ClassAt(source.name, module, source.name) if len(path) == 1 else None
            if not isinstance(source, Imported):
                alias = dotted(source)
                path = (*alias, *path[1:]) if alias else ()
                continue
            target = (*source.path, *path[1:])
            inside = self.split(target)
            if inside is None and len(target) > 1:
                return ClassAt(target[-1], module, ".".join(path))
            module, path = inside or (module, ())
        return None

    def split(self, path: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """A full dotted path as (module of the package, name in it); None when it is outside."""
        for size in range(len(path) - 1, 0, -1):
            module = ".".join(path[:size])
            if module in self._sources:
                return module, path[size:]
        return None

    def digest(self) -> str:
        """SHA-256 over the name and the source of every module read, in hexadecimal."""
        total = hashlib.sha256()
        for name in sorted(self._sources):
            for text in (name, self._sources[name]):
                data = text.encode("utf-8", "surrogatepass")
                total.update(len(data).to_bytes(8, "little") + data)
        return total.hexdigest()

    def _is_package(self, module: str) -> bool:
        return self._specs[module].submodule_search_locations is not None

    def _read(self, name: str, spec: ModuleSpec) -> None:
        try:
            source = source_of(spec)
        except Exception as error:  # a loader, a codec: each raises what it likes
            self._fault(name, error)
            return
        if source is not None:
            self._sources[name] = source
        elif spec.loader is not None:  # a folder without __init__ has none, and no code either
            self.without_source.append(name)

    def _parsed(self, module: str) -> Mapping[str, list[Binding]]:
        source = self._sources[module]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as of an invalid escape: its import's affair
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._fault(module, error)
            return {}
        found = dict(bindings(tree, self.package_of(module)))
        for variable in VARIABLES:
            # One mention is the declaration itself.
            if variable in found and source.count(variable) > 1 and is_changed(tree, variable):
                found[variable] = [*found[variable], Binding(None, always=False)]
        return found

    def _fault(self, module: str, error: Exception) -> None:
        place, text = self._specs[module].origin or module, str(error)
        if isinstance(error, SyntaxError):
            place, text = f"{place}:{error.lineno}" if error.lineno else place, error.msg
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        problem = f"module {module} cannot be read: {place}: {said}"
        fix = "repair that file, or remove it"
        self.faults.append(Reason(ReasonCode.MODULE_UNREADABLE, problem, fix))
