"""Hook plugins: loaded one by one when a hook is called, none able to disturb another.

Whatever a plugin does wrong - its import fails or exits, its hooks do not fit, one of them raises -
becomes a record beside the others, and everybody else's hooks are called all the same.

A plugin is not called for what it does itself: while it is being imported, asked or told, and
resolves or loads a model, its own hooks are passed over. Otherwise it would be called for ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import clear_frames, walk_tb

import pluggy

from ..hooks import HookWarning
from .entries import is_dotted
from .hook_checks import TO_AUTHOR, invalid
from .hook_entry import CONTAINED, HookEntry, cause_of, load_hooks
from .provider import Reason, ReasonCode

_ACTIVE: ContextVar[frozenset[HookEntry]] = ContextVar("archzoo_active_hooks", default=frozenset())


class HookPlugins:
    """The hooks of several plugins.

    Args:
        entries: the plugins, in the order in which they are called; those that are not ready are
            passed over, and their own reasons say why.
    """

    def __init__(self, entries: tuple[HookEntry, ...]) -> None:
        """Nothing is loaded yet."""
        self._entries = tuple(entry for entry in entries if entry.ready)
        self._loaded: dict[HookEntry, pluggy.PluginManager | tuple[Reason, ...]] = {}
        self._problems: dict[tuple[str, Reason], None] = {}

    def architectures(self) -> tuple[tuple[HookEntry, str, str | type], ...]:
        """What every plugin answers to ``archzoo_architectures``.

        Returns:
            (plugin, architecture, ``"module:Class"`` or class), in order of plugins. Two plugins
            may name the same architecture.
        """
        answers: list[tuple[HookEntry, str, str | type]] = []
        for entry in self._idle():
            results, faults = self._call(entry, "archzoo_architectures", {})
            for result in results:
                good, bad = _read_answer(entry, result)
                answers += good
                faults += bad
            self._keep(entry, faults)
        return tuple(answers)

    def observe(
        self, hook: str, /, *, serving: str, everywhere: frozenset[str], **values: object
    ) -> None:
        """Tell observers what happened; plugins that it does not concern are not even imported.

        An observer that cannot run or that raises is a ``HookWarning``, given after all have run.

        Args:
            hook: name of the hook.
            serving: normalised distribution that serves the model; empty when none was found.
            everywhere: normalised distributions that the user lets observe every model.
            values: arguments of the hook.
        """
        failed: list[tuple[HookEntry, Reason]] = []
        for entry in self._idle():
            if entry.key == serving or entry.key in everywhere:
                _, faults = self._call(entry, hook, values)
                self._keep(entry, faults)
                failed += [(entry, fault) for fault in faults]
        for entry, fault in failed:
            text = f"{entry.distribution} did not observe {hook}: {fault}"
            warnings.warn(text, HookWarning, stacklevel=2)

    def problems(self) -> tuple[tuple[str, Reason], ...]:
        """What loading and calling has found so far: (distribution, reason), each once."""
        return tuple(self._problems)

    def _idle(self) -> Iterator[HookEntry]:
        """Plugins that are not themselves at work."""
        return (entry for entry in self._entries if entry not in _ACTIVE.get())

    def _call(
        self, entry: HookEntry, hook: str, values: Mapping[str, object]
    ) -> tuple[list[object], list[Reason]]:
        """Results of one plugin's implementations, or why there are none."""
        with _active(entry):
            if entry not in self._loaded:
                self._loaded[entry] = load_hooks(entry)
            loaded = self._loaded[entry]
            if isinstance(loaded, tuple):
                return [], list(loaded)
            call = getattr(loaded.hook, hook)
            try:
                return [_plain(result) for result in call(**values)], []
            except CONTAINED as error:
                problem = f"{hook} of '{entry.line}' raised {cause_of(error)} ({_place(error)})"
                clear_frames(error.__traceback__)  # they hold the model, and pluggy's hold them
                return [], [Reason(ReasonCode.HOOK_RAISED, problem, TO_AUTHOR)]

    def _keep(self, entry: HookEntry, faults: list[Reason]) -> None:
        self._problems.update(((entry.distribution, fault), None) for fault in faults)


@contextmanager
def _active(entry: HookEntry) -> Iterator[None]:
    """Mark a plugin as being at work in this thread."""
    token = _ACTIVE.set(_ACTIVE.get() | {entry})
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _plain(result: object) -> object:
    """A result that runs no code of the plugin any more when it is looked at."""
    return dict(result) if isinstance(result, Mapping) else result


def _read_answer(
    entry: HookEntry, answer: object
) -> tuple[list[tuple[HookEntry, str, str | type]], list[Reason]]:
    """Usable items of an answer to ``archzoo_architectures``, and what is wrong with the others."""
    where = f"archzoo_architectures of '{entry.line}'"
    if not isinstance(answer, dict):
        return [], [invalid(f"{where} gave {_shown(answer)}, expected a mapping")]
    good: list[tuple[HookEntry, str, str | type]] = []
    bad: list[Reason] = []
    for name, target in answer.items():
        if not isinstance(name, str) or not name:
            bad.append(invalid(f"{where} names {_shown(name)}, expected an architecture"))
        elif isinstance(target, type) or (isinstance(target, str) and _is_target(target)):
            good.append((entry, name, target))
        else:
            expected = "expected a class or 'module:Class'"
            bad.append(invalid(f"{where} gave {_shown(target)} for {name}, {expected}"))
    return good, bad


def _is_target(text: str) -> bool:
    module, _, attr = text.partition(":")
    return is_dotted(f"{module}.{attr}")


def _shown(value: object) -> str:
    """A text as it is, anything else by its type: a plugin's ``__repr__`` is its own code."""
    return repr(value) if type(value) is str else f"an object of type {type(value).__name__}"


def _place(error: BaseException) -> str:
    """File and line that raised."""
    *_, (frame, line) = walk_tb(error.__traceback__)
    return f"{frame.f_code.co_filename}, line {line}"
