"""From a checkpoint's architecture names to the one class that serves them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import (
    ConfigError,
    DisabledArchitectureError,
    DuplicateArchitectureError,
    RegistryError,
    UnknownArchitectureError,
)
from ..settings import STRICT_VARIABLE
from .decision import Decision, Verdict, decide
from .groups import Group
from .index import Catalog, catalog
from .installation import forget_scans
from .loading import load_class
from .provider import Problem, Provider, ProviderState
from .telling import warn_caller

_UNABLE = (ProviderState.SKIPPED, ProviderState.BROKEN)


def resolve(
    architectures: str | Sequence[str],
    *,
    strict: bool | None = None,
    disabled: str | Iterable[str] | None = None,
    prefer: Mapping[str, str] | None = None,
) -> type:
    """The class that serves a checkpoint; imports exactly one plugin module.

    Names are tried in order and the first that anyone claims decides: when that one is disabled,
    skipped, broken or contested, the answer is an error and never another name of the list.

    Args:
        architectures: ``architectures`` of config.json, or one name.
        strict: refuse as long as any enabled plugin is skipped or broken, also when it is not the
            one asked for; ``ARCHZOO_STRICT`` decides when None.
        disabled: architectures to switch off besides ``ARCHZOO_DISABLED_MODEL_ARCHS``.
        prefer: architecture -> distribution or external package that serves it where several
            claim it; goes before ``ARCHZOO_PREFER``.

    Raises:
        UnknownArchitectureError: nobody serves it; carries near names and the reasons of
            providers that were skipped.
        DisabledArchitectureError: it is switched off.
        DuplicateArchitectureError: several distributions claim it and nothing chooses.
        PluginLoadError: the plugin's module does not import, or lacks the class.
        MissingDependency: an optional dependency of the plugin is not installed.
        RegistryError: strict, and an enabled plugin is skipped or broken; or the one chosen does
            not claim the name.
        ConfigError: the names, or an environment variable, cannot be understood.
    """
    source = catalog_for(architectures)
    if disabled is not None or prefer is not None:
        source = source.under(source.settings.changed(disabled, prefer))
    return resolve_from(source, architectures, strict=strict)


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
    return serve(source, architectures, strict=strict).found


class Served(NamedTuple):
    """The answer to a question.

    Args:
        found: the class.
        provider: who provides it.
        source: the catalog that knows the provider.
    """

    found: type
    provider: Provider
    source: Catalog


def serve(
    source: Catalog, architectures: str | Sequence[str], *, strict: bool | None = None
) -> Served:
    """The class that serves a checkpoint, and who provides it.

    Args:
        source: the catalog to choose from.
        architectures: as for ``resolve``.
        strict: as for ``resolve``; the catalog's settings decide when None.

    Raises:
        RegistryError: as ``resolve``.
        ConfigError: a name that is not a text.
    """
    names = _checked_names(architectures)
    refuse_if_strict(source, strict)
    _warn_of_settings(source)
    provider, knowing = provider_of(source, names)
    return Served(load_class(provider, knowing), provider, knowing)


def provider_of(source: Catalog, names: Sequence[str]) -> tuple[Provider, Catalog]:
    """Who serves the first name that anyone claims, and the catalog that knows it.

    Running code is asked only when no metadata and no source text has an answer.

    Args:
        source: the catalog to choose from.
        names: architectures, best first.

    Raises:
        RegistryError: nobody does; says why.
    """
    decision = decide(source, names)
    if decision.provider is not None:
        return decision.provider, source
    if decision.verdict is not Verdict.UNKNOWN:
        raise refusal(decision)
    from .late import ask_late  # it runs code of others, and nearly nobody needs it

    answer = ask_late(source)
    extended = source.with_late(answer.claims)
    decision = decide(extended, names)
    if decision.provider is not None:
        return decision.provider, extended
    raise refusal(decision, answer.problems) from answer.cause


def refusal(decision: Decision, late: Sequence[Problem] = ()) -> RegistryError:
    """The error that a decision without a provider amounts to.

    Args:
        decision: what was decided.
        late: what went wrong while running code was asked.
    """
    labels = tuple(provider.label for provider in decision.candidates)
    match decision.verdict:
        case Verdict.DISABLED:
            return DisabledArchitectureError(decision.name, decision.setting)
        case Verdict.CONTESTED:
            noun = decision.group.noun
            return DuplicateArchitectureError(decision.name, labels, decision.hint, noun)
        case Verdict.MISCHOSEN:
            claimed = " and ".join(labels)
            return RegistryError(f"{decision.name} is claimed by {claimed}: {decision.hint}")
    names = (decision.name,) if decision.name else decision.names
    considered = (*decision.candidates, *decision.problems, *late)
    return UnknownArchitectureError(
        names, decision.near, tuple(map(str, considered)), decision.hint
    )


def refuse_if_strict(source: Catalog, strict: bool | None) -> None:
    """Strict mode: everything that is enabled must be able to serve.

    Args:
        source: the catalog.
        strict: whether to be strict; the catalog's settings decide when None.

    Raises:
        RegistryError: strict, and something enabled cannot serve.
    """
    if source.settings.strict if strict is None else strict:
        faults = unable(source)
        if faults:
            raise RegistryError("\n  ".join((f"{strict_verdict(faults)}:", *faults)))


def strict_verdict(faults: Sequence[str]) -> str:
    """What strict mode says of faults, before it lists them.

    Args:
        faults: from ``unable``.
    """
    return (
        f"strict mode ({STRICT_VARIABLE}=1 or strict=True) refuses to go on while "
        f"{len(faults)} enabled entries cannot serve; mend or disable them"
    )


def unable(source: Catalog) -> tuple[str, ...]:
    """Everything enabled that cannot serve, each with its reasons.

    Args:
        source: the catalog.
    """
    faults = [
        str(provider)
        for group in Group
        for provider in source.providers(group)
        if provider.state in _UNABLE
    ]
    return (*faults, *map(str, source.plugin_problems()))


def catalog_for(architectures: str | Sequence[str]) -> Catalog:
    """This process's catalog, current enough to answer for some architectures.

    Args:
        architectures: as for ``resolve``.

    Raises:
        ConfigError: a name that is not a text, or a bad environment variable.
    """
    return current_catalog(_checked_names(architectures), Group.MODELS)


def current_catalog(names: Sequence[str], group: Group) -> Catalog:
    """This process's catalog; scanned again when what is missing may have been installed since.

    Args:
        names: names that are served never lead to a scan.
        group: which kind of name.

    Raises:
        ConfigError: an environment variable that cannot be understood.
    """
    source = catalog()
    if source.installation.is_stale() and decide(source, names, group).provider is None:
        forget_scans()
        importlib.invalidate_caches()
        source = catalog()
    return source


def _checked_names(architectures: str | Sequence[str]) -> tuple[str, ...]:
    names = (architectures,) if isinstance(architectures, str) else tuple(architectures)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"{name!r} is not an architecture name; give texts such as 'LlamaForCausalLM'",
                field="architectures",
            )
    return names


def _warn_of_settings(source: Catalog) -> None:
    """What the user named and does not exist must not go unnoticed, whoever serves."""
    for problem in (*source.setting_problems(), *source.external_problems()):
        warn_caller(str(problem))
