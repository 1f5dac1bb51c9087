"""read_config: a checkpoint's config.json as a dict, with hostile files refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .folders import likely_kind
from .values import show

CONFIG_NAME = "config.json"
MAX_BYTES = 64 * 2**20
"""Bytes of the largest file that is read; real ones have a few KiB."""

MAX_DEPTH = 32
"""Nested objects and lists; real files have up to 6."""


def read_config(path_or_dir: str | PathLike[str]) -> dict[str, Any]:
    """Content of a config.json.

    Args:
        path_or_dir: the file, or the checkpoint folder that holds it.

    Raises:
        ConfigError: missing, unreadable, not UTF-8, not JSON, not an object, nested too deep, or
            one name stated twice with different values.
    """
    path = Path(path_or_dir)
    if path.is_dir():
        path = path / CONFIG_NAME
    raw = read_json(path)
    check_object(raw, str(path))
    result: dict[str, Any] = raw
    return result


def read_json(path: Path) -> Any:
    """Content of a JSON file of any shape.

    Raises:
        ConfigError: as ``read_config``, but for what the file must hold.
    """
    content = _read(path)
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except ConfigError as error:
        raise ConfigError(error.problem, error.field, str(path)) from None
    except RecursionError:
        raise ConfigError(_too_deep(), "", str(path)) from None
    except ValueError as error:
        problem = saved_instead(content) or f"not valid JSON in UTF-8: {error}"
        raise ConfigError(problem, "", str(path)) from None


def check_object(raw: object, file: str) -> None:
    """Refuse what is not an object with names for keys, or is nested too deep.

    Raises:
        ConfigError: as above.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{type(raw).__name__} instead of a JSON object", "", file)
    pending: list[tuple[object, int]] = [(raw, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ConfigError(_too_deep(), "", file)
        pending += [(child, depth + 1) for child in _children(node, file)]


def saved_instead(head: bytes) -> str:
    """What was saved in the place of a downloaded file, by how it begins; empty when nothing shows."""
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file; run: git lfs pull"
    if head.lstrip()[:1] == b"<":
        return "is an HTML or XML page, not the file; the download was answered with a web page"
    return ""


def _children(node: object, file: str) -> Iterable[object]:
    """What an object or a list holds; nothing for a plain value."""
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str):
                raise ConfigError(f"key {show(key)} is not a string", "", file)
        return node.values()
    return node if isinstance(node, list | tuple) else ()


def _too_deep() -> str:
    return f"nested deeper than {MAX_DEPTH} levels, which no model configuration is"


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{size} bytes; at most {MAX_BYTES} are read", "", str(path))
        return path.read_bytes()
    except FileNotFoundError:
        problem = "no such file; expected a Hugging Face checkpoint folder or its config.json"
        if path.name == CONFIG_NAME and (kind := likely_kind(path.parent)):
            problem = f"no such file; {kind}"
        raise ConfigError(problem, "", str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", "", str(path)) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are stated once, or always with the same value."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result and result[name] != value:
            problem = f"stated twice, as {show(result[name])} and {show(value)}; remove one"
            raise ConfigError(problem, name)
        result[name] = value
    return result
