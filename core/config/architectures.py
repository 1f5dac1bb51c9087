"""architectures_of: what a configuration says it is, read before its family is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import Where, texts


def architectures_of(raw: Mapping[str, Any], file: str = "") -> tuple[str, ...]:
    """Names under ``architectures``, in order; none where it is absent or null.

    Raises:
        ConfigError: it is no list of names.
    """
    stated = raw.get("architectures")
    return () if stated is None else texts(stated, Where("architectures", file))
