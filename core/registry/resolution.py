"""From a checkpoint's architecture names to the one class that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ..errors import (
    ConfigError,
    DisabledArchitectureError,
    DuplicateArchitectureError,
    MissingDependency,
    PluginLoadError,
    RegistryError,
    UnknownArchitectureError,
)
from ..settings import DISABLED_VARIABLE, PLUGINS_VARIABLE, STRICT_VARIABLE
from .index import Catalog, catalog
from .provider import Provider, ProviderState

_FIRST_PLUGIN = "archzoo-llama"
_SHOWN = 8  # distributions that a message lists before it only counts the rest


def resolve(architectures: str | Sequence[str], *, strict: bool | None = None) -> type:
    """The class that serves a checkpoint; imports exactly one plugin module.

    Names are tried in order and the first that anyone claims decides: when that one is disabled,
    skipped, broken or contested, the answer is an error and never another name of the list.

    Args:
        architectures: ``architectures`` of config.json, or one name.
        strict: refuse as long as any enabled plugin is skipped or broken, also when it is not the
            one asked for; ``ARCHZOO_STRICT`` decides when None.

    Raises:
        UnknownArchitectureError: nobody serves it; carries near names and the reasons of
            providers that were skipped.
        DisabledArchitectureError: it is in ``ARCHZOO_DISABLED_MODEL_ARCHS``.
        DuplicateArchitectureError: several distributions claim it.
        PluginLoadError: the plugin's module does not import, or lacks the class.
        MissingDependency: the plugin says that an optional dependency is not installed.
        RegistryError: strict, and an enabled plugin is skipped or broken.
        ConfigError: the names, or an environment variable, cannot be understood.
    """
    return resolve_from(catalog(), architectures, strict=strict)


def resolve_from(
    source: Catalog, architectures: str | Sequence[str], *, strict: bool | None = None
) -> type:
    """``resolve`` out of a given catalog.

    Args:
        source: the catalog to choose from.
        architectures: as for ``resolve``.
        strict: as for ``resolve``; the catalog's settings decide when None.

    Raises:
        RegistryError: as ``resolve``.
        ConfigError: a name that is not a text.
    """
    names = _checked_names(architectures)
    if source.settings.strict if strict is None else strict:
        _refuse_any_skip(source)
    return _load(_choose(source, names))


def _checked_names(architectures: str | Sequence[str]) -> tuple[str, ...]:
    names = (architectures,) if isinstance(architectures, str) else tuple(architectures)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"{name!r} is not an architecture name; give texts such as 'LlamaForCausalLM'",
                field="architectures",
            )
    return names


def _refuse_any_skip(source: Catalog) -> None:
    """Strict mode: everything that is enabled must be able to serve."""
    faults = [
        str(provider)
        for provider in source.providers()
        if provider.state in (ProviderState.SKIPPED, ProviderState.BROKEN)
    ]
    faults += map(str, source.plugin_problems())
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise RegistryError(
            f"strict mode ({STRICT_VARIABLE}=1 or strict=True) refuses to go on while "
            f"{len(faults)} enabled entries cannot serve; mend or disable them:{lines}"
        )


def _choose(source: Catalog, names: tuple[str, ...]) -> Provider:
    """The provider that serves the first name anyone claims."""
    for name in names:
        if name in source.settings.disabled:
            raise DisabledArchitectureError(name, DISABLED_VARIABLE)
        providers = source.providers_of(name)
        if providers:
            return _only_ready(source, name, providers)
    near = dict.fromkeys(match for name in names for match in source.near(name))
    reasons = tuple(map(str, source.plugin_problems()))
    raise UnknownArchitectureError(names, tuple(near), reasons, _hint(source))


def _only_ready(source: Catalog, name: str, providers: tuple[Provider, ...]) -> Provider:
    """The one provider that can serve.

    A skipped claim still contests: which class serves must not depend on what else happens to be
    installed. A broken one does not, or a defect in one plugin would take down another.
    """
    contenders = [
        provider
        for provider in providers
        if provider.state in (ProviderState.READY, ProviderState.SKIPPED)
    ]
    if len(contenders) > 1:
        raise DuplicateArchitectureError(
            name,
            tuple(provider.label for provider in contenders),
            f"uninstall all but one, or list in {PLUGINS_VARIABLE} the distributions to use",
        )
    if contenders and contenders[0].state is ProviderState.READY:
        return contenders[0]
    hint = "" if source.distributions() else _hint(source)
    raise UnknownArchitectureError((name,), (), tuple(map(str, providers)), hint)


def _hint(source: Catalog) -> str:
    """What to do when nobody claims a name."""
    enabled = source.distributions()
    if not enabled and source.settings.plugins is not None:
        return f"{PLUGINS_VARIABLE} lets no installed plugin in; unset it to use all"
    if not enabled:
        return f"no model plugin is installed; run: pip install {_FIRST_PLUGIN}"
    shown = ", ".join(enabled[:_SHOWN])
    more = f" and {len(enabled) - _SHOWN} more" if len(enabled) > _SHOWN else ""
    return f"installed plugins: {shown}{more}; install the plugin that serves this architecture"


def _load(provider: Provider) -> type:
    """Import the provider's module and take the class out of it."""
    entry = f"{provider.architecture} = {provider.target}"
    try:
        found: object = import_module(provider.module)
        for part in provider.attr.split("."):
            found = getattr(found, part)
    except MissingDependency:
        raise
    except (Exception, SystemExit) as error:  # a plugin that exits must not end the engine
        problem = f"{type(error).__name__}: {error}"
        raise PluginLoadError(entry, provider.label, problem) from error
    if not isinstance(found, type):
        problem = f"{provider.module}:{provider.attr} is {found!r}, not a class"
        raise PluginLoadError(entry, provider.label, problem)
    return found
