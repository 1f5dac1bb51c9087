"""archzoo's own environment variables, read in this one place and nowhere else.

Variables of others are read where they are used: torchrun's in ``parallel.launch`` (its rank also
by ``cli``, which prints once), the Hugging Face hub's in ``runtime``.

========================================  ====================================================
``ARCHZOO_DISABLED_MODEL_ARCHS``          exact architecture names, comma separated
``ARCHZOO_STRICT``                        1 turns every skipped plugin into an error
``ARCHZOO_PLUGINS``                       distributions to use; unset: all, empty: none
========================================  ====================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import InvalidName, canonicalize_name

from .errors import ConfigError

__all__ = ["DISABLED_VARIABLE", "PLUGINS_VARIABLE", "STRICT_VARIABLE", "Settings"]

DISABLED_VARIABLE = "ARCHZOO_DISABLED_MODEL_ARCHS"
STRICT_VARIABLE = "ARCHZOO_STRICT"
PLUGINS_VARIABLE = "ARCHZOO_PLUGINS"

_ARCHITECTURE = re.compile(r"[\w.-]+")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True)
class Settings:
    """What the environment says about the registry.

    Args:
        disabled: architecture names that must not be served; compared exactly.
        strict: a skipped or broken plugin is an error even when another one is asked for.
        plugins: normalised names of the distributions to use; None means all of them.
    """

    disabled: frozenset[str] = frozenset()
    strict: bool = False
    plugins: frozenset[str] | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables.

        Args:
            environ: where to read them; the process environment when None.

        Raises:
            ConfigError: a value that cannot be understood; ``field`` is the variable.
        """
        source = os.environ if environ is None else environ
        return cls(
            disabled=_architectures(source.get(DISABLED_VARIABLE, "")),
            strict=_flag(STRICT_VARIABLE, source.get(STRICT_VARIABLE, "")),
            plugins=_distributions(source.get(PLUGINS_VARIABLE)),
        )

    def selects(self, distribution: str) -> bool:
        """Whether plugins of this distribution may be used, by any spelling of its name."""
        return self.plugins is None or canonicalize_name(distribution) in self.plugins


def _items(value: str) -> tuple[str, ...]:
    """Parts of a comma-separated list; empty parts say nothing and are dropped."""
    return tuple(part for part in map(str.strip, value.split(",")) if part)


def _architectures(value: str) -> frozenset[str]:
    names = _items(value)
    for name in names:
        if not _ARCHITECTURE.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not an architecture name; "
                "write exact names separated by commas, such as LlamaForCausalLM,MistralForCausalLM",
                field=DISABLED_VARIABLE,
            )
    return frozenset(names)


def _flag(variable: str, value: str) -> bool:
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(f"{value!r} is neither on nor off; write 1 or 0", field=variable)


def _distributions(value: str | None) -> frozenset[str] | None:
    if value is None:
        return None
    try:
        return frozenset(canonicalize_name(name, validate=True) for name in _items(value))
    except InvalidName:
        raise ConfigError(
            f"{value!r} holds something that is not a distribution name; "
            "write names as pip spells them, separated by commas, such as archzoo-llama",
            field=PLUGINS_VARIABLE,
        ) from None
