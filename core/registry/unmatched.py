"""Settings that match nothing: each is a problem with near names, never silently without effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ..settings import OBSERVERS_VARIABLE, PLUGINS_VARIABLE, Settings
from .provider import Problem, Reason, ReasonCode


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that look like one, upper and lower case aside, best first."""
    from difflib import get_close_matches  # only failures need it, and importing it costs 10 ms

    spellings = {other.lower(): other for other in known}
    return tuple(spellings[match] for match in get_close_matches(name.lower(), spellings))


def unmatched_settings(
    settings: Settings,
    targets: Mapping[str, Collection[str]],
    names: Collection[str],
    installed: Collection[str],
    makers: Collection[str],
) -> Iterator[Problem]:
    """A problem for each name in the settings that matches nothing.

    Args:
        settings: what to check.
        targets: claimed architecture -> modules that its claims point into.
        names: every claimed name, of all groups.
        installed: normalised names of the plugins that are installed.
        makers: those, and the external packages, that claim anything.
    """
    for name in sorted(settings.disabled - set(targets)):
        inside = _served_from(name, targets)
        problem = f"{name!r} matches no installed architecture"
        if inside:
            problem = f"{name!r} is the name of a module, not of an architecture"
            yield _problem(settings.disabled_by, problem, f"write {','.join(inside)}")
        else:
            yield _problem(settings.disabled_by, problem, _near_fix(name, targets))
    for variable, listed in (
        (PLUGINS_VARIABLE, settings.plugins or ()),
        (OBSERVERS_VARIABLE, settings.observers),
    ):
        for name in sorted(set(listed) - set(installed)):
            problem = f"{name!r} matches no installed plugin"
            yield _problem(variable, problem, _near_fix(name, installed))
    for name, chosen in settings.prefer:
        if chosen not in makers:
            problem = f"{chosen!r} matches no installed plugin and no external package"
            yield _problem(settings.prefer_by, problem, _near_fix(chosen, makers))
        elif name and name not in names:
            problem = f"{name!r} is claimed by nobody"
            yield _problem(settings.prefer_by, problem, _near_fix(name, names))


def _served_from(stem: str, targets: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Architectures that a module of that name holds: SGLang's lists name modules.

    Plugins rarely keep SGLang's file names, so the beginning of the architecture counts as well:
    ``llama`` is what ``LlamaForCausalLM`` begins with.
    """
    last = stem.rpartition(".")[2]
    exact = [
        name
        for name, modules in targets.items()
        if any(last == module.rpartition(".")[2] for module in modules)
    ]
    if exact or not last.islower():
        return tuple(sorted(exact))
    flat = last.replace("_", "")
    return tuple(sorted(name for name in targets if name.lower().startswith(f"{flat}for")))


def _near_fix(name: str, known: Iterable[str]) -> str:
    near = near_names(name, sorted(known))
    return f"near names: {', '.join(near)}" if near else "remove it from that list"


def _problem(variable: str, problem: str, fix: str) -> Problem:
    return Problem(variable, Reason(ReasonCode.SETTING_UNMATCHED, problem, fix))
