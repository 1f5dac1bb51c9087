"""The other interpreter of ``doctor --probe``: imports one provider and tells how it went."""

from __future__ import annotations

import json
import sys
import warnings

from ..errors import MissingDependency, PluginLoadError
from ..registry import Catalog, Group, Provider, ReasonCode, catalog
from ..registry.loading import load_class
from .probing import answer


def main() -> None:
    """Probe the provider given as JSON: group, name, distribution."""
    group, name, distribution = json.loads(sys.argv[1])
    source = catalog()
    provider = next(
        each
        for each in source.providers_of(name, Group(group))
        if each.distribution == distribution
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hooks = provider.group is Group.PLUGINS
        code, problem, fix, remarks = _hooks(provider) if hooks else _class(provider, source)
    remarks += [str(each.message) for each in caught if distribution in str(each.message)]
    print(answer(code, problem, fix, remarks), flush=True)


Told = tuple[str, str, str, list[str]]


def _class(provider: Provider, source: Catalog) -> Told:
    try:
        load_class(provider, source)
    except PluginLoadError as error:
        return error.code, error.problem, error.fix, []
    except MissingDependency as error:
        problem = f"{error.requirement!r} is not installed"
        return ReasonCode.DEPENDENCY_MISSING, problem, f"run: {error.install}", []
    return "", "", "", []


def _hooks(provider: Provider) -> Told:
    """Load a plugin's hooks and ask it for architectures, as a miss would."""
    from ..registry.hook_plugins import HookPlugins
    from ..registry.late import hook_entry

    hooks = HookPlugins((hook_entry(provider),))
    hooks.architectures()
    remarks = ["its hook module imports torch"] if "torch" in sys.modules else []
    for _, reason in hooks.problems():
        return reason.code, reason.problem, reason.fix, remarks
    return "", "", "", remarks


if __name__ == "__main__":
    main()
