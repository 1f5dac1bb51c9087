"""What modules of an external package claim, told by their source."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib.util import resolve_name

from .entries import Entry, is_dotted
from .external_names import TABLE, Imported, dotted
from .external_sources import Sources
from .provider import Reason, ReasonCode


def claims_in(
    sources: Sources, module: str, variable: str, asked: frozenset[str] = frozenset()
) -> tuple[Entry, ...] | None:
    """What a module's variable claims.

    Args:
        sources: the package.
        module: one of its modules.
        variable: ``EntryClass`` or ``ARCHITECTURES``.
        asked: modules that import the variable from this one; a circle of them tells nothing.

    Returns:
        None when the source does not tell: the variable is bound other than once, inside a block,
        or to something computed.
    """
    bound = sources.names(module).get(variable, [])
    if len(bound) != 1 or not bound[0].always or module in asked:
        return None
    source = bound[0].source
    if isinstance(source, Imported) and source.path[-1] == variable:
        inside = sources.split(source.path)
        if inside is None or inside[1] != (variable,):
            return None
        return claims_in(sources, inside[0], variable, asked | {module})
    if variable == TABLE:
        return _table(sources, module, source) if isinstance(source, ast.Dict) else None
    if isinstance(source, (ast.List, ast.Tuple)):
        return _classes(sources, module, map(dotted, source.elts))
    return _classes(sources, module, [(variable,)])


def entry_of_text(name: str, text: str, module: str, package: str) -> Entry:
    """A claim whose target is given as text.

    Args:
        name: the architecture.
        text: ``"Class"`` in the module itself, ``".module:Class"`` or ``"package.module:Class"``.
        module: the module that says so.
        package: what relative names in it start from; empty when there is nothing.
    """
    where, colon, attr = text.rpartition(":")
    try:
        target = resolve_name(where, package) if colon else module
    except ImportError:  # more dots than there are packages above
        target = ""
    if is_dotted(target) and is_dotted(attr):
        return Entry(name, target, attr)
    problem = (
        f"{TABLE} of module {module} gives {name!r} the target {text!r}, which is not "
        "'Class', '.module:Class' or 'package.module:Class'"
    )
    return Entry(
        name, fault=Reason(ReasonCode.ENTRY_POINT_INVALID, problem, "correct it in that module")
    )


def merged(
    claims: Iterable[tuple[str, Entry]], sources: Sources | None = None
) -> tuple[Entry, ...]:
    """One entry for each architecture, in order; the first one, with a fault if others contradict.

    Args:
        claims: each with the module that makes it.
        sources: tells whether two targets are one class, named in two ways.
    """
    kept: dict[str, tuple[str, Entry]] = {}
    for module, entry in claims:
        first_module, first = kept.setdefault(entry.name, (module, entry))
        if first == entry or (sources is not None and _is_same_class(sources, first, entry)):
            continue
        problem = (
            f"{entry.name!r} is claimed by module {first_module} for {_target(first)} "
            f"and by module {module} for {_target(entry)}"
        )
        fault = Reason(ReasonCode.ENTRY_POINT_INVALID, problem, "keep one of the two")
        kept[entry.name] = (first_module, first._replace(fault=first.fault or fault))
    return tuple(entry for _, entry in kept.values())


def _is_same_class(sources: Sources, one: Entry, other: Entry) -> bool:
    places = {
        sources.class_at(entry.module, tuple(entry.attr.split("."))) for entry in (one, other)
    }
    return len(places) == 1 and None not in places


def _target(entry: Entry) -> str:
    return f"{entry.module}:{entry.attr}" if entry.module else "a target that cannot be read"


def _classes(
    sources: Sources, module: str, names: Iterable[tuple[str, ...]]
) -> tuple[Entry, ...] | None:
    """Classes under their own names."""
    entries: list[Entry] = []
    for name in names:
        found = sources.class_at(module, name)
        if found is None:
            return None
        entries.append(Entry(found.name, found.module, found.attr))
    return tuple(entries)


def _table(sources: Sources, module: str, table: ast.Dict) -> tuple[Entry, ...] | None:
    """Classes, or texts that name them, under the table's keys."""
    entries: list[Entry] = []
    for key, value in zip(table.keys, table.values, strict=True):
        name, target = _text(key), _text(value)
        found = sources.class_at(module, dotted(value))
        if name and target is not None:
            entries.append(entry_of_text(name, target, module, sources.package_of(module)))
        elif name and found is not None:
            entries.append(Entry(name, found.module, found.attr))
        else:
            return None
    return tuple(entries)


def _text(expression: ast.expr | None) -> str | None:
    """The value of a text literal."""
    value = expression.value if isinstance(expression, ast.Constant) else None
    return value if isinstance(value, str) else None
