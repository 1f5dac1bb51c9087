"""What an imported module of an external package claims."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from reprlib import repr as shown  # short, and safe for values whose own repr raises
from types import ModuleType

from ..errors import RegistryError
from .entries import Entry
from .external_claims import entry_of_text, merged
from .external_names import CLASSES, TABLE
from .provider import Reason, ReasonCode


def declared_by(module: ModuleType, package: str) -> tuple[Entry, ...]:
    """What a module exposes as ``EntryClass`` or ``ARCHITECTURES``; None counts as nothing.

    A class of the package is taken from where it is defined, as when the source tells.

    Args:
        module: the imported module.
        package: name of the external package it belongs to.

    Raises:
        RegistryError: a variable holds something of the wrong type.
    """
    claims = [*_classes(module, package), *_table(module, package)]
    return merged((module.__name__, entry) for entry in claims)


def _classes(module: ModuleType, package: str) -> Iterator[Entry]:
    value = getattr(module, CLASSES, None)
    if value is None:
        return
    for found in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(found, type):
            raise RegistryError(
                f"{CLASSES} of module {module.__name__} holds {shown(found)}, not a class; "
                "set it to a model class, or a list of them"
            )
        yield _entry(found.__name__, found, module, package)


def _table(module: ModuleType, package: str) -> Iterator[Entry]:
    value = getattr(module, TABLE, None)
    if value is None:
        return
    if not (isinstance(value, Mapping) and all(isinstance(key, str) and key for key in value)):
        raise RegistryError(
            f"{TABLE} of module {module.__name__} is {shown(value)}; "
            "set it to a dict of architecture names to classes, or to texts like '.module:Class'"
        )
    for name, target in value.items():
        if isinstance(target, type):
            yield _entry(name, target, module, package)
        elif isinstance(target, str):
            yield entry_of_text(name, target, module.__name__, module.__package__ or "")
        else:
            yield _fault(
                name,
                f"{TABLE} of module {module.__name__} gives {name!r} the target {shown(target)}, "
                "which is neither a class nor a text",
            )


def _entry(name: str, found: type, module: ModuleType, package: str) -> Entry:
    """A claim for a class: taken from where it is defined, if that is inside the package."""
    home, attr = str(found.__module__), found.__qualname__
    is_inside = f"{home}.".startswith(f"{package}.")
    if is_inside and getattr(sys.modules.get(home), attr, None) is found:
        return Entry(name, home, attr)
    for attr, value in vars(module).items():
        if value is found:
            return Entry(name, module.__name__, attr)
    problem = f"class {shown(found)}, claimed by module {module.__name__}, has no name there"
    return _fault(name, problem)  # a place in a list is not something to import


def _fault(name: str, problem: str) -> Entry:
    reason = Reason(ReasonCode.ENTRY_POINT_INVALID, problem, "correct it in that module")
    return Entry(name, fault=reason)
