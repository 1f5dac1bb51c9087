"""What the top level of a module binds, read from its syntax tree and not by running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from typing import NamedTuple

CLASSES, TABLE = VARIABLES = ("EntryClass", "ARCHITECTURES")

_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)
_MUTATORS = frozenset(
    {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)


class Imported(NamedTuple):
    """A name that an import statement binds.

    Args:
        path: components of what it names: module, then attribute (or submodule).
    """

    path: tuple[str, ...]


Source = ast.expr | ast.ClassDef | Imported | None


class Binding(NamedTuple):
    """One place where a module gives a name its value.

    Args:
        source: the value assigned, the class defined, what is imported; None for all else.
        always: whether importing the module must run it, which is not so inside a block.
    """

    source: Source
    always: bool


def bindings(tree: ast.Module, package: str) -> Mapping[str, list[Binding]]:
    """Every binding of every name at the top level, blocks included, star imports left out.

    Args:
        tree: the module.
        package: package that its relative imports start from; empty when there is none.
    """
    found: dict[str, list[Binding]] = {}
    pending: list[tuple[ast.AST, bool]] = [(statement, True) for statement in tree.body]
    while pending:
        node, always = pending.pop()
        for name, source in _bound_by(node, package):
            found.setdefault(name, []).append(Binding(source, always))
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += ((child, False) for child in _blocks(node))
    return found


def is_changed(tree: ast.Module, name: str) -> bool:
    """Whether code anywhere in a module changes what a name is bound to, or holds."""
    return any(_changes(node, name) for node in ast.walk(tree))


def dotted(expression: object) -> tuple[str, ...]:
    """Components of ``a.b.c``; empty for any other expression."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return (expression.id, *reversed(parts)) if isinstance(expression, ast.Name) else ()


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a statement that are statements, or hold some."""
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, _BLOCKS))


def _bound_by(node: ast.AST, package: str) -> Iterator[tuple[str, Source]]:
    """Names that a statement binds itself, without those of its blocks."""
    match node:
        case ast.ClassDef(name=name):
            yield name, node
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, None
        case ast.Import(names=names):
            for alias in names:
                path = tuple(alias.name.split("."))
                whole = alias.asname is not None  # without "as", only the first component is bound
                yield alias.asname or path[0], Imported(path if whole else path[:1])
        case ast.ImportFrom():
            yield from _from_import(node, package)
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            if value is not None:
                yield name, value
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
                else:
                    yield from _stored(target)
            yield from _stored(value)
        case _:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, _BLOCKS):
                    yield from _stored(child)


def _from_import(node: ast.ImportFrom, package: str) -> Iterator[tuple[str, Imported | None]]:
    try:
        base = resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # more dots than there are packages above
        base = ""
    for alias in node.names:
        if alias.name != "*":
            path = (*base.split("."), alias.name)
            yield alias.asname or alias.name, Imported(path) if base else None


def _stored(expression: ast.AST) -> Iterator[tuple[str, None]]:
    """Names bound or deleted somewhere inside an expression."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None


def _changes(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=changed), attr=method)):
            return changed == name and method in _MUTATORS
        case ast.Subscript(value=ast.Name(id=changed), ctx=ast.Store() | ast.Del()):
            return changed == name
        case ast.Global(names=names):
            return name in names
        case _:
            return False
