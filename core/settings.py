"""archzoo's own environment variables, read in this one place and nowhere else.

Variables of others are read where they are used: torchrun's in ``parallel.launch`` (its rank also
by ``cli``, which prints once), the Hugging Face hub's in ``runtime``.

==================================  ==========================================================
``ARCHZOO_DISABLED_MODEL_ARCHS``    exact architecture names, comma separated
``ARCHZOO_EXTERNAL_MODEL_PACKAGE``  import names of packages with models, comma separated
``ARCHZOO_PLUGINS``                 distributions to use; unset: all, empty: none
``ARCHZOO_PREFER``                  who serves a name that several claim: ``NAME=DISTRIBUTION``,
                                    or a distribution to prefer for whatever it claims
``ARCHZOO_OBSERVERS``               distributions whose hooks see the models of all others too
``ARCHZOO_STRICT``                  1 turns every skipped plugin into an error
==================================  ==========================================================

The first two are also read under SGLang's names, ``SGLANG_DISABLED_MODEL_ARCHS`` and
``SGLANG_EXTERNAL_MODEL_PACKAGE``, where archzoo's own are unset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .errors import ConfigError
from .naming import is_distribution_name, normalised

__all__ = [
    "ALIASES",
    "DISABLED_VARIABLE",
    "EXTERNAL_VARIABLE",
    "OBSERVERS_VARIABLE",
    "PLUGINS_VARIABLE",
    "PREFER_VARIABLE",
    "STRICT_VARIABLE",
    "Settings",
    "variables_in_force",
]

DISABLED_VARIABLE = "ARCHZOO_DISABLED_MODEL_ARCHS"
EXTERNAL_VARIABLE = "ARCHZOO_EXTERNAL_MODEL_PACKAGE"
PLUGINS_VARIABLE = "ARCHZOO_PLUGINS"
PREFER_VARIABLE = "ARCHZOO_PREFER"
OBSERVERS_VARIABLE = "ARCHZOO_OBSERVERS"
STRICT_VARIABLE = "ARCHZOO_STRICT"

ALIASES = {
    DISABLED_VARIABLE: "SGLANG_DISABLED_MODEL_ARCHS",
    EXTERNAL_VARIABLE: "SGLANG_EXTERNAL_MODEL_PACKAGE",
}
"""Our own variable -> the other name under which it is read."""

_ALL = (
    DISABLED_VARIABLE,
    EXTERNAL_VARIABLE,
    PLUGINS_VARIABLE,
    PREFER_VARIABLE,
    OBSERVERS_VARIABLE,
    STRICT_VARIABLE,
)
_DISABLED_ARGUMENT = "disabled="
_PREFER_ARGUMENT = "prefer="
_ARCHITECTURE = re.compile(r"[\w.-]+")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class Settings(NamedTuple):
    """What the environment, or a caller, says about the registry.

    Args:
        disabled: architecture names that must not be served; compared exactly.
        strict: a skipped or broken plugin is an error even when another one is asked for.
        plugins: normalised names of the distributions to use; None means all of them.
        external: import names of packages that offer models, in search order.
        prefer: (name, normalised distribution) pairs that settle conflicts; an empty name stands
            for every name that the distribution claims.
        observers: normalised distributions whose hooks observe everybody's models.
        disabled_by: where ``disabled`` was said, for messages.
        external_by: where ``external`` was said.
        prefer_by: where ``prefer`` was said.
    """

    disabled: frozenset[str] = frozenset()
    strict: bool = False
    plugins: frozenset[str] | None = None
    external: tuple[str, ...] = ()
    prefer: tuple[tuple[str, str], ...] = ()
    observers: frozenset[str] = frozenset()
    disabled_by: str = DISABLED_VARIABLE
    external_by: str = EXTERNAL_VARIABLE
    prefer_by: str = PREFER_VARIABLE

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables.

        Args:
            environ: where to read them; the process environment when None.

        Raises:
            ConfigError: a value that cannot be understood; ``field`` is the variable.
        """
        source = os.environ if environ is None else environ
        disabled_by, disabled = _first_set(DISABLED_VARIABLE, source)
        external_by, external = _first_set(EXTERNAL_VARIABLE, source)
        plugins = source.get(PLUGINS_VARIABLE)
        return cls(
            disabled=_architectures(disabled_by, _items(disabled)),
            strict=_flag(STRICT_VARIABLE, source.get(STRICT_VARIABLE, "")),
            plugins=None if plugins is None else _distributions(PLUGINS_VARIABLE, plugins),
            external=_packages(external_by, external),
            prefer=_preferences(source.get(PREFER_VARIABLE, "")),
            observers=_distributions(OBSERVERS_VARIABLE, source.get(OBSERVERS_VARIABLE, "")),
            disabled_by=disabled_by,
            external_by=external_by,
        )

    def selects(self, distribution: str) -> bool:
        """Whether plugins of this distribution may be used, by any spelling of its name."""
        return self.plugins is None or normalised(distribution) in self.plugins

    def changed(
        self, disabled: str | Iterable[str] | None = None, prefer: Mapping[str, str] | None = None
    ) -> Settings:
        """These settings with a caller's own words added.

        Args:
            disabled: further architecture names to switch off, or one name.
            prefer: name -> distribution or package; goes before what the settings say.

        Raises:
            ConfigError: something that is no name.
        """
        result = self
        if disabled is not None:
            listed = (disabled,) if isinstance(disabled, str) else tuple(disabled)
            named = _architectures(_DISABLED_ARGUMENT, listed)
            where = _either(_DISABLED_ARGUMENT, self.disabled_by if self.disabled else "")
            result = result._replace(disabled=self.disabled | named, disabled_by=where)
        if prefer is not None:
            for name in prefer:
                _check_architecture(_PREFER_ARGUMENT, name)
            asked = tuple(
                (name, _distribution(_PREFER_ARGUMENT, chosen)) for name, chosen in prefer.items()
            )
            kept = tuple(pair for pair in self.prefer if pair[0] not in prefer)
            where = _either(_PREFER_ARGUMENT, self.prefer_by if kept else "")
            result = result._replace(prefer=asked + kept, prefer_by=where)
        return result

    def chosen(self, name: str) -> str:
        """Distribution that the user chose for exactly this name; empty when none."""
        return next((chosen for given, chosen in self.prefer if given == name), "")

    def preferred(self) -> frozenset[str]:
        """Distributions to prefer for whatever they claim."""
        return frozenset(chosen for name, chosen in self.prefer if not name)


def variables_in_force(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every variable the registry obeys that is set, aliases included, with its value."""
    source = os.environ if environ is None else environ
    names = (name for own in _ALL for name in (own, ALIASES.get(own)) if name)
    return {name: source[name] for name in names if name in source}


def _first_set(variable: str, source: Mapping[str, str]) -> tuple[str, str]:
    """The variable, or its alias where only that is set, and the value."""
    alias = ALIASES[variable]
    if variable not in source and alias in source:
        return alias, source[alias]
    return variable, source.get(variable, "")


def _either(argument: str, setting: str) -> str:
    return f"{argument} or {setting}" if setting else argument


def _items(value: str) -> tuple[str, ...]:
    """Parts of a comma-separated list; empty parts say nothing and are dropped."""
    return tuple(part for part in map(str.strip, value.split(",")) if part)


def _architectures(where: str, names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        _check_architecture(where, name)
    return frozenset(names)


def _check_architecture(where: str, name: str) -> None:
    if not isinstance(name, str) or not _ARCHITECTURE.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not an architecture name; "
            "write exact names separated by commas, such as LlamaForCausalLM,MistralForCausalLM",
            field=where,
        )


def _flag(variable: str, value: str) -> bool:
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(f"{value!r} is neither on nor off; write 1 or 0", field=variable)


def _distributions(variable: str, value: str) -> frozenset[str]:
    return frozenset(_distribution(variable, name) for name in _items(value))


def _distribution(variable: str, name: str) -> str:
    if is_distribution_name(name):
        return normalised(name)
    raise ConfigError(
        f"{name!r} is not a distribution name; "
        "write names as pip spells them, separated by commas, such as archzoo-llama",
        field=variable,
    )


def _packages(variable: str, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_items(value)))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"{name!r} is not the import name of a package; "
                "write names as import does, separated by commas, such as my_models,other.models",
                field=variable,
            )
    return names


def _preferences(value: str) -> tuple[tuple[str, str], ...]:
    pairs: dict[tuple[str, str], None] = {}
    for item in _items(value):
        name, equals, chosen = (part.strip() for part in item.rpartition("="))
        if equals:
            _check_architecture(PREFER_VARIABLE, name)
        pairs[name, _distribution(PREFER_VARIABLE, chosen)] = None
        if name and sum(given == name for given, _ in pairs) > 1:
            raise ConfigError(
                f"{name} is given to two distributions; name one", field=PREFER_VARIABLE
            )
    return tuple(pairs)
