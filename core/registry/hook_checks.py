"""What a hook plugin must look like before any of its hooks is called.

pluggy checks names of arguments. It lets pass what would never run or never be filled: a hook
without the marker, a coroutine, an argument with a default. All of that is refused here as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pluggy

from ..hooks import HOOKS_VERSION, PROJECT, HookSpecs
from .provider import Reason, ReasonCode

TO_AUTHOR = "report it to the distribution's author"
"""What a user does about a defect of a plugin."""

_PREFIX = f"{PROJECT}_"
_VERSION_NAME = "ARCHZOO_HOOKS_VERSION"
_HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith(_PREFIX))
_NEVER_RUN = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def describe_signature(function: Callable[..., object]) -> str:
    """A function as ``name(first, second=1)``, without annotations and without ``self``."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in _parameters(function)]
    return f"{function.__name__}{inspect.Signature(plain)}"


def version_fault(module: object) -> Reason | None:
    """Why a module's stated version of the hooks does not fit this archzoo; None when it does."""
    version = getattr(module, _VERSION_NAME, HOOKS_VERSION)
    if type(version) is not int or version < 1:
        problem = f"{_VERSION_NAME} is {version!r}, expected an integer from 1 on"
        return invalid(problem, f"state the version it was written for, {HOOKS_VERSION} today")
    if version > HOOKS_VERSION:
        problem = f"it needs version {version} of the hooks, this archzoo has {HOOKS_VERSION}"
        return Reason(ReasonCode.HOOK_VERSION, problem, "run: pip install --upgrade archzoo")
    return None


def registered(plugin: object, line: str) -> pluggy.PluginManager | tuple[Reason, ...]:
    """A plugin on a manager of its own, or everything that is wrong with its hooks.

    One manager for each plugin, because on a shared one a refused plugin stays half registered,
    and plugins that compare equal refuse each other.

    Args:
        plugin: module or object with implementations.
        line: its entry point, for messages.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.register(plugin, name=line)
    found = [
        (caller.name, implementation)
        for caller in manager.get_hookcallers(plugin) or ()
        for implementation in caller.get_hookimpls()
    ]
    faults = list(_unmarked(manager, plugin, line))
    for name, implementation in found:
        faults += _faults_of(name, implementation, line)
    if not found and not faults:
        problem = f"'{line}', of type {type(plugin).__name__}, implements no hook"
        faults.append(invalid(problem, f"mark one of {', '.join(_HOOKS)} with archzoo's hookimpl"))
    if faults:
        return tuple(faults)
    manager.add_hookspecs(HookSpecs)
    return manager


def _unmarked(manager: pluggy.PluginManager, plugin: object, line: str) -> Iterator[Reason]:
    """Functions that look like hooks and that pluggy would pass over."""
    for name in dir(plugin):
        if not name.startswith(_PREFIX) or manager.parse_hookimpl_opts(plugin, name) is not None:
            continue
        if inspect.isroutine(getattr(plugin, name, None)):
            problem = f"{name} of '{line}' is named like a hook and not marked as one"
            yield invalid(problem, "decorate it with archzoo.hooks.hookimpl, or rename it")


def _faults_of(name: str, implementation: pluggy.HookImpl, line: str) -> Iterator[Reason]:
    if name not in _HOOKS:
        if not implementation.optionalhook:
            yield invalid(f"{name} of '{line}' is not a hook of this archzoo", _known_hooks(name))
        return
    function = implementation.function
    # A method of a class, rather than of an instance, would be called without its instance.
    if inspect.isclass(implementation.plugin):
        yield _wrong(name, function, line, "it belongs to a class", "name an instance of the class")
    elif any(test(function) for test in _NEVER_RUN):
        problem = "a generator or coroutine returns before it has run, and no hook can be wrapped"
        yield _wrong(name, function, line, problem, "write a plain function")
    else:
        expected = {parameter.name for parameter in _parameters(getattr(HookSpecs, name))}
        for parameter in _parameters(function):
            problem = _misfit(parameter, expected)
            if problem:
                yield _wrong(name, function, line, problem, "take expected arguments only")


def _misfit(parameter: inspect.Parameter, expected: set[str]) -> str:
    """Why a parameter would not be filled, by any pluggy that archzoo allows; empty when it is."""
    if parameter.kind not in _POSITIONAL:
        return f"argument {str(parameter)!r} is not filled: hooks are called with plain arguments"
    if parameter.name not in expected:
        return f"argument {parameter.name!r} is not expected"
    if parameter.default is not inspect.Parameter.empty:
        return f"argument {parameter.name!r} has a default, which may be taken for its value"
    return ""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters as a caller sees them; a method taken from its class still carries ``self``."""
    found = list(inspect.signature(function).parameters.values())
    unbound = bool(found) and found[0].name == "self" and "." in function.__qualname__
    return found[1:] if unbound else found


def _known_hooks(name: str) -> str:
    from difflib import get_close_matches  # only failures need it

    near = get_close_matches(name, _HOOKS)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_HOOKS)}"


def _wrong(name: str, function: Callable[..., object], line: str, problem: str, fix: str) -> Reason:
    """A signature that does not fit, told on a line each as pluggy does."""
    expected = describe_signature(getattr(HookSpecs, name))
    text = (
        f"a hook has a wrong signature\n  plugin: {line}\n  hook: {name}\n"
        f"  expected: {expected}, or fewer arguments\n"
        f"  found: {describe_signature(function)}\n  reason: {problem}"
    )
    return invalid(text, fix)


def invalid(problem: str, fix: str = TO_AUTHOR) -> Reason:
    """A record of hooks that are not as archzoo calls them."""
    return Reason(ReasonCode.HOOK_INVALID, problem, fix)
