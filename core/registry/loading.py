"""From a provider to its class: the one place that imports plugin code, and judges how it went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from reprlib import repr as shown  # short, and safe for values whose own repr raises

from ..errors import MissingDependency, PluginLoadError
from .index import Catalog
from .provider import Origin, Provider, ReasonCode
from .requirements import declared_as
from .scan import Plugin
from .shadowing import displaced
from .telling import warn_caller

_AUTHOR = "report it to the distribution's author, or uninstall it"


def load_class(provider: Provider, source: Catalog) -> type:
    """Import a provider's module and take the class out of it.

    Args:
        provider: one that is ready.
        source: the catalog it came from; tells what its distribution declares.

    Raises:
        MissingDependency: the plugin says so itself, or its import misses a module that the
            distribution declares: an optional dependency is not installed.
        PluginLoadError: anything else that goes wrong; the cause is chained, ``code`` says what.
    """
    found: object = provider.found
    if found is None:
        found = _taken(provider, source)
    if not isinstance(found, type):
        problem = f"{provider.module}:{provider.attr} is {shown(found)}, not a class"
        raise _defect(provider, source, ReasonCode.NOT_A_CLASS, problem)
    _refuse_if_displaced(provider, source)
    return found


def _taken(provider: Provider, source: Catalog) -> object:
    with _judged(provider, source):
        module = import_module(provider.module)
    with _judged(provider, source, taking=True):  # a module's __getattr__ may do anything
        return attrgetter(provider.attr)(module)


@contextmanager
def _judged(provider: Provider, source: Catalog, *, taking: bool = False) -> Iterator[None]:
    """What plugin code raises becomes an error that names the plugin; the cause is chained."""
    try:
        yield
    except MissingDependency as error:
        error.add_note(f"said by {provider.label}, which serves {provider.name}")
        raise
    except ModuleNotFoundError as error:
        raise _not_found(provider, source, error) from error
    except SystemExit as error:  # a plugin that exits must not end the engine
        problem = f"importing {provider.module} ends the interpreter (exit code {error.code})"
        raise _defect(provider, source, ReasonCode.IMPORT_EXITED, problem) from error
    except Exception as error:
        code, problem = ReasonCode.IMPORT_FAILED, f"{type(error).__name__}: {error}"
        if taking and isinstance(error, AttributeError):
            code, problem = ReasonCode.NAME_MISSING, f"{provider.target} names nothing: {error}"
        raise _defect(provider, source, code, problem) from error


def _not_found(
    provider: Provider, source: Catalog, error: ModuleNotFoundError
) -> MissingDependency | PluginLoadError:
    """What a missing module means: an optional dependency, an absent file, or a defect."""
    missing = error.name or ""
    plugin = source.installed(provider)
    if missing and _is_own(provider, plugin, missing):
        problem = f"its module {missing} is not there"
        fix = f"run: pip install --force-reinstall {provider.distribution}" if plugin else ""
        return _defect(provider, source, ReasonCode.MODULE_MISSING, problem, fix)
    # A dotted name is a part of something that is there: no dependency is missing then.
    declared = declared_as(plugin.installed, missing) if plugin and "." not in missing else None
    if declared is None:
        problem = f"{type(error).__name__}: {error}"
        if plugin and "." not in missing:
            problem += f", which {provider.distribution} does not declare"
        return _defect(provider, source, ReasonCode.IMPORT_FAILED, problem)
    requirement, install = declared
    return MissingDependency(f"{provider.name} of {provider.label}", requirement, install)


def _is_own(provider: Provider, plugin: Plugin | None, missing: str) -> bool:
    """Whether a missing module is one that the plugin itself should have brought."""
    if f"{provider.module}.".startswith(f"{missing}."):
        return True
    path = missing.replace(".", "/")
    files = (f"{path}.py", f"{path}/__init__.py")
    return plugin is not None and any(map(plugin.installed_file, files))


def _refuse_if_displaced(provider: Provider, source: Catalog) -> None:
    """A class out of another plugin's file is not the one asked for.

    A file that no plugin installed, such as that of a checkout, may be what the user wants.
    """
    other = displaced(provider, source)
    if other is not None and other.owners:
        problem = f"it would be served by the class of {other.owners}"
        raise _defect(provider, source, ReasonCode.MODULE_SHADOWED, problem)
    if other is not None:
        warn_caller(f"{provider.entry} of {provider.label}: {other.problem}")


def _defect(
    provider: Provider, source: Catalog, code: ReasonCode, problem: str, fix: str = ""
) -> PluginLoadError:
    """The error for a defect; a package hidden by another is the cause of whatever goes wrong."""
    other = displaced(provider, source)
    if other is not None:
        code, problem = ReasonCode.MODULE_SHADOWED, f"{other.problem}; {problem}"
        fix = f"rename or uninstall {other.owners or 'the one that hides it'}"
    elif not fix and provider.origin is Origin.EXTERNAL:
        fix = f"mend the package, or take it out of {provider.variable}"
    return PluginLoadError(provider.entry, provider.label, problem, fix or _AUTHOR, code)
