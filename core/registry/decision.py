"""Decision: which provider serves a checkpoint, or why none does. Pure data, nothing is imported.

``resolve`` carries a decision out and ``archzoo why`` prints it, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ..naming import normalised
from ..settings import PLUGINS_VARIABLE, PREFER_VARIABLE
from .groups import Group
from .index import Catalog
from .provider import Problem, Provider, ProviderState

FIRST_PLUGIN = "archzoo-llama"
_SHOWN = 8  # distributions that a hint lists before it only counts the rest
_CONTENDING = (ProviderState.READY, ProviderState.SKIPPED)


class Verdict(StrEnum):
    """What became of a question."""

    SERVED = "served"
    UNKNOWN = "unknown"  # nobody claims any of the names
    DISABLED = "disabled"  # the first name that counts is switched off
    CONTESTED = "contested"  # several claim it and nothing chooses
    MISCHOSEN = "mischosen"  # the setting that chooses names somebody who does not claim it
    UNUSABLE = "unusable"  # claimed, by nobody who can serve


class Decision(NamedTuple):
    """The whole decision on a checkpoint's names.

    Args:
        names: what was asked for, best first.
        verdict: what became of it.
        name: the name that decided; empty when none is claimed.
        provider: who serves; None unless served.
        candidates: every claim on the name that decided.
        choice: the setting that settled a conflict; empty when there was none.
        near: claimed names that look like those asked for.
        setting: the variable or argument that disabled it; else empty.
        group: which kind of name.
        hint: what to do about it; empty when it is served.
        problems: faults of plugins that may have hidden a claim.
    """

    names: tuple[str, ...]
    verdict: Verdict
    name: str = ""
    provider: Provider | None = None
    candidates: tuple[Provider, ...] = ()
    choice: str = ""
    near: tuple[str, ...] = ()
    setting: str = ""
    group: Group = Group.MODELS
    hint: str = ""
    problems: tuple[Problem, ...] = ()


def decide(source: Catalog, names: Sequence[str], group: Group = Group.MODELS) -> Decision:
    """Which provider serves the first name that anyone claims.

    A name that is disabled, skipped, broken or contested decides all the same: no other name of
    the list is tried in its place.

    Args:
        source: who claims what, under the settings.
        names: names, best first.
        group: which kind of name.
    """
    asked = tuple(names)
    for name in asked:
        candidates = source.providers_of(name, group)
        if group is Group.MODELS and name in source.settings.disabled:
            setting = source.settings.disabled_by
            hint = f"remove it from {setting} to use it"
            return Decision(
                asked, Verdict.DISABLED, name, candidates=candidates, setting=setting, hint=hint
            )
        if candidates:
            return _among(source, asked, name, candidates)._replace(group=group)
    near = dict.fromkeys(match for name in asked for match in source.near(name, group))
    problems = source.plugin_problems()
    hint = _hint(source, asked, group)
    return Decision(
        asked, Verdict.UNKNOWN, near=tuple(near), group=group, hint=hint, problems=problems
    )


def _among(
    source: Catalog, asked: tuple[str, ...], name: str, candidates: tuple[Provider, ...]
) -> Decision:
    """The one candidate that serves.

    A skipped claim still contests: which class serves must not depend on what else happens to be
    installed. A broken one does not, or a defect in one plugin would take down another.
    """
    chosen = source.settings.chosen(name)
    if chosen and chosen not in map(_key, candidates):
        setting = source.settings.prefer_by
        hint = f"{setting} gives {name} to {chosen}, which does not claim it; change it"
        return Decision(asked, Verdict.MISCHOSEN, name, candidates=candidates, hint=hint)
    contenders = [each for each in candidates if each.state in _CONTENDING]
    if len(contenders) > 1:
        hint = f"choose one with {PREFER_VARIABLE}={name}={_key(contenders[0])}, or uninstall the others"
        return Decision(asked, Verdict.CONTESTED, name, candidates=candidates, hint=hint)
    if not contenders or contenders[0].state is not ProviderState.READY:
        hint = "" if source.distributions() else _nothing_installed(source)
        return Decision(asked, Verdict.UNUSABLE, name, candidates=candidates, hint=hint)
    overridden = any(each.state is ProviderState.OVERRIDDEN for each in candidates)
    choice = f"{source.settings.prefer_by} chooses it" if overridden else ""
    return Decision(asked, Verdict.SERVED, name, contenders[0], candidates, choice)


def _key(provider: Provider) -> str:
    return normalised(provider.distribution)


def _hint(source: Catalog, names: tuple[str, ...], group: Group) -> str:
    """What to do when nobody claims a name."""
    enabled = source.distributions()
    for name in names if group is Group.MODELS else ():
        home = source.tombstone(name)
        if home and home not in enabled:
            return f"{name} is served by {home}; run: pip install {home}"
    if not enabled:
        return _nothing_installed(source)
    shown = ", ".join(enabled[:_SHOWN])
    more = f" and {len(enabled) - _SHOWN} more" if len(enabled) > _SHOWN else ""
    return f"installed plugins: {shown}{more}; install the plugin that serves this {group.noun}"


def _nothing_installed(source: Catalog) -> str:
    if source.settings.plugins is not None:
        return f"{PLUGINS_VARIABLE} lets no installed plugin in; unset it to use all"
    return f"no model plugin is installed; run: pip install {FIRST_PLUGIN}"
