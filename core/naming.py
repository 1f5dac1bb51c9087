"""Names of distributions, spelled and compared as the packaging specifications say.

Beside ``packaging.utils``, whose import brings in what it takes to tell wheel tags apart and costs
more than a whole scan.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["is_distribution_name", "normalised"]

_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"[a-z0-9]|[a-z0-9][a-z0-9._-]*[a-z0-9]", re.ASCII | re.IGNORECASE)


@lru_cache(maxsize=4096)
def normalised(name: str) -> str:
    """The one spelling under which names are compared: ``Flash_Attn`` is ``flash-attn``.

    Source: Python Packaging User Guide, "Names and normalization" (PEP 503).

    Args:
        name: a distribution or an extra, in any spelling.
    """
    return _SEPARATORS.sub("-", name).lower()


def is_distribution_name(name: object) -> bool:
    """Whether pip would take it for a name: letters and digits, with ``.``, ``_``, ``-`` inside."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
