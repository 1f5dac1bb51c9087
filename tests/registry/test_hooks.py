"""Hook plugins: who is called, and that a bad one is named and disturbs nobody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from registry.sites import Site

from archzoo.hooks import HookWarning
from archzoo.registry import Reason, ReasonCode
from archzoo.registry.entries import Entry
from archzoo.registry.hook_checks import describe_signature
from archzoo.registry.hook_entry import HookEntry
from archzoo.registry.hook_plugins import HookPlugins
from archzoo.registry.late import hooks_of

HEAD = "from archzoo.hooks import hookimpl\nseen = []\n"
ANSWER = HEAD + "@hookimpl\ndef archzoo_architectures():\n    return {answer}\n"
OBSERVER = HEAD + "@hookimpl\ndef archzoo_model_loaded(model, report):\n    seen.append(model)\n"
GOOD = ANSWER.format(answer="{'GoodForCausalLM': 'hk_good.model:Good'}") + (
    "@hookimpl\ndef archzoo_model_loaded(model):\n    seen.append(model)\n"
)
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def plugin(live_site: Site) -> Callable[..., HookEntry]:
    """Writes a hook module and gives its entry."""

    def write(name: str, source: str, attr: str = "") -> HookEntry:
        (live_site.folder / f"hk_{name}.py").write_text(source)
        return HookEntry(f"zq-{name} 1.0", f"zq-{name}", Entry("hooks", f"hk_{name}", attr))

    return write


Write = Callable[..., HookEntry]


def told(plugins: HookPlugins, serving: str, everywhere: frozenset[str] = NOBODY) -> list[str]:
    """Tell of a loaded model; the warnings that came of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugins.observe(
            "archzoo_model_loaded", serving=serving, everywhere=everywhere, model="m", report="r"
        )
    assert {warning.category for warning in caught} <= {HookWarning}
    return [str(warning.message) for warning in caught]


def seen(name: str) -> list[Any]:
    return list(import_module(f"hk_{name}").seen)


def only_problem(plugins: HookPlugins) -> tuple[str, Reason]:
    (found,) = plugins.problems()
    return found


# --- answers


def test_no_plugins() -> None:
    plugins = HookPlugins(())
    assert plugins.architectures() == () and plugins.problems() == ()
    assert told(plugins, "zq-a") == []


def test_answers_of_all_plugins_in_order(plugin: Write) -> None:
    first = plugin("a", ANSWER.format(answer="{'X': 'm:C', 'Y': int}"))
    second = plugin("b", ANSWER.format(answer="{'X': 'other.m:C.D'}"))
    silent = plugin("c", OBSERVER)
    none = plugin("d", ANSWER.format(answer="None"))
    plugins = HookPlugins((first, second, silent, none))
    expected = ((first, "X", "m:C"), (first, "Y", int), (second, "X", "other.m:C.D"))
    assert plugins.architectures() == expected
    assert plugins.architectures() == expected and plugins.problems() == ()


def test_an_object_of_a_module_is_a_plugin(plugin: Write) -> None:
    source = HEAD + (
        "class Hooks:\n"
        "    @hookimpl\n"
        "    def archzoo_architectures(self):\n        return {'X': 'm:C'}\n"
        "    @hookimpl\n"
        "    def archzoo_model_loaded(self, report, model):\n        seen.append((model, report))\n"
        "class space:\n    inner = Hooks()\n"
    )
    entry = plugin("a", source, "space.inner")
    plugins = HookPlugins((entry,))
    assert plugins.architectures() == ((entry, "X", "m:C"),)
    assert told(plugins, "zq-a") == [] and seen("a") == [("m", "r")]


def test_equal_and_unhashable_objects_are_different_plugins(plugin: Write) -> None:
    source = HEAD + (
        "class Hooks:\n"
        "    def __eq__(self, other):\n        return True\n"
        "    @hookimpl\n"
        "    def archzoo_architectures(self):\n        return {'X': 'm:C'}\n"
        "plugin = Hooks()\n"
    )
    plugins = HookPlugins((plugin("a", source, "plugin"), plugin("b", source, "plugin")))
    assert len(plugins.architectures()) == 2 and plugins.problems() == ()


@pytest.mark.parametrize(
    ("answer", "told_of"),
    [
        ("['X']", "gave an object of type list, expected a mapping"),
        ("'m:C'", "gave 'm:C', expected a mapping"),
        ("7", "gave an object of type int, expected a mapping"),
        ("{7: 'm:C'}", "names an object of type int, expected an architecture"),
        ("{'': 'm:C'}", "names '', expected an architecture"),
        ("{'X': 'm'}", "gave 'm' for X, expected a class or 'module:Class'"),
        ("{'X': 'm:'}", "gave 'm:' for X"),
        ("{'X': ':C'}", "gave ':C' for X"),
        ("{'X': 'a b:C'}", "gave 'a b:C' for X"),
        ("{'X': 'm:C:D'}", "gave 'm:C:D' for X"),
        ("{'X': None}", "gave an object of type NoneType for X"),
        ("{'X': lambda: 1}", "gave an object of type function for X"),
    ],
)
def test_answers_that_are_none(plugin: Write, answer: str, told_of: str) -> None:
    bad, good = plugin("bad", ANSWER.format(answer=answer)), plugin("good", GOOD)
    plugins = HookPlugins((bad, good))
    assert plugins.architectures() == ((good, "GoodForCausalLM", "hk_good.model:Good"),)
    label, reason = only_problem(plugins)
    assert (label, reason.code) == ("zq-bad 1.0", ReasonCode.HOOK_INVALID)
    assert told_of in reason.problem and "'hooks = hk_bad'" in reason.problem


def test_a_bad_item_costs_only_itself(plugin: Write) -> None:
    entry = plugin("a", ANSWER.format(answer="{'X': 3, 'Y': 'm:C', 'Z': ''}"))
    plugins = HookPlugins((entry,))
    assert plugins.architectures() == ((entry, "Y", "m:C"),)
    assert [reason.code for _, reason in plugins.problems()] == [ReasonCode.HOOK_INVALID] * 2


def test_a_mapping_that_raises_while_it_is_read(plugin: Write) -> None:
    source = (
        "from collections.abc import Mapping\n"
        "class Lazy(Mapping):\n"
        "    def __len__(self): return 1\n"
        "    def __iter__(self): return iter(['X'])\n"
        "    def __getitem__(self, key): raise OSError('index gone')\n"
    ) + ANSWER.format(answer="Lazy()")
    plugins = HookPlugins((plugin("a", source), plugin("good", GOOD)))
    assert len(plugins.architectures()) == 1
    assert only_problem(plugins)[1].code is ReasonCode.HOOK_RAISED
    assert "OSError: index gone" in only_problem(plugins)[1].problem


# --- who observes


def test_an_observer_sees_its_own_distributions_models(plugin: Write) -> None:
    plugins = HookPlugins((plugin("a", OBSERVER), plugin("b", OBSERVER)))
    assert told(plugins, "zq-a") == []
    assert seen("a") == ["m"] and "hk_b" not in sys.modules


def test_everywhere_is_the_users_word(plugin: Write) -> None:
    plugins = HookPlugins((plugin("a", OBSERVER), plugin("b", OBSERVER), plugin("c", OBSERVER)))
    told(plugins, "zq-a", frozenset({"zq-b"}))
    assert (seen("a"), seen("b"), "hk_c" in sys.modules) == (["m"], ["m"], False)
    told(plugins, "zq-b", frozenset({"zq-b"}))
    assert (seen("a"), seen("b")) == (["m"], ["m", "m"])


@pytest.mark.parametrize("serving", ["", "zq", "zq-ab", "ZQ-A"])
def test_nobody_observes_what_others_serve(plugin: Write, serving: str) -> None:
    told(HookPlugins((plugin("a", OBSERVER),)), serving)
    assert "hk_a" not in sys.modules


def test_several_entries_of_one_distribution(plugin: Write) -> None:
    first, second = plugin("a", OBSERVER), plugin("b", OBSERVER)
    second = HookEntry(first.distribution, first.key, second.entry)
    told(HookPlugins((first, second)), "zq-a")
    assert seen("a") == seen("b") == ["m"]


def test_a_failed_load_is_observed(plugin: Write) -> None:
    source = (
        HEAD + "@hookimpl\ndef archzoo_load_failed(error, path):\n    seen.append((path, error))\n"
    )
    plugins = HookPlugins((plugin("a", source),))
    error = ValueError("no")
    plugins.observe("archzoo_load_failed", serving="zq-a", everywhere=NOBODY, path="p", error=error)
    told(plugins, "zq-a")
    assert seen("a") == [("p", error)]


def test_an_observer_that_raises_is_a_warning(plugin: Write) -> None:
    bad = plugin("bad", HEAD + "@hookimpl\ndef archzoo_model_loaded(model):\n    1 / 0\n")
    plugins = HookPlugins((bad, plugin("good", OBSERVER)))
    (text,) = told(plugins, "zq-good", frozenset({"zq-bad"}))
    assert seen("good") == ["m"]
    for part in ("zq-bad 1.0", "archzoo_model_loaded", "'hooks = hk_bad'", "ZeroDivisionError"):
        assert part in text
    assert re.search(r"hk_bad\.py, line 5\)", text)
    assert only_problem(plugins)[1].code is ReasonCode.HOOK_RAISED


def test_a_warning_turned_into_an_error_waits_for_the_other_observers(plugin: Write) -> None:
    bad = plugin("bad", HEAD + "@hookimpl\ndef archzoo_model_loaded():\n    raise OSError\n")
    plugins = HookPlugins((bad, plugin("good", OBSERVER)))
    both = frozenset({"zq-bad", "zq-good"})
    with pytest.raises(HookWarning, match="raised OSError "):
        plugins.observe("archzoo_model_loaded", serving="", everywhere=both, model="m", report="r")
    assert seen("good") == ["m"]


def test_every_lost_observation_warns_and_is_recorded_once(plugin: Write) -> None:
    plugins = HookPlugins((plugin("bad", "import zq_no_such_module\n"),))
    assert [len(told(plugins, "zq-bad")) for _ in range(3)] == [1, 1, 1]
    assert only_problem(plugins)[1].code is ReasonCode.HOOK_LOAD_FAILED


def test_what_a_hook_raises_holds_no_model_alive(plugin: Write) -> None:
    class Model:
        alive = 0

        def __init__(self) -> None:
            Model.alive += 1

        def __del__(self) -> None:
            Model.alive -= 1

    bad = plugin("bad", HEAD + "@hookimpl\ndef archzoo_model_loaded(model):\n    raise OSError\n")
    plugins = HookPlugins((bad,))
    with pytest.warns(HookWarning):
        plugins.observe(
            "archzoo_model_loaded", serving="zq-bad", everywhere=NOBODY, model=Model(), report=None
        )
    assert Model.alive == 0


# --- plugins that are broken


def wrong(definition: str) -> str:
    return f"{HEAD}@hookimpl\n{definition}\n"


BROKEN = {
    "syntax": ("def (", ReasonCode.HOOK_LOAD_FAILED, "SyntaxError"),
    "missing module": ("import zq_nowhere", ReasonCode.HOOK_LOAD_FAILED, "named 'zq_nowhere'"),
    "raises": ("raise RuntimeError('boom\\nbang')", ReasonCode.HOOK_LOAD_FAILED, "boom bang"),
    "exits": ("raise SystemExit(3)", ReasonCode.HOOK_LOAD_FAILED, "SystemExit: 3"),
    "exits silently": ("import sys; sys.exit()", ReasonCode.HOOK_LOAD_FAILED, "SystemExit; "),
    "circular": ("import hk_bad; hk_bad.later; later = 1", ReasonCode.HOOK_LOAD_FAILED, "circular"),
    "unreadable message": (
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        ReasonCode.HOOK_LOAD_FAILED,
        "E: (a message that cannot be read)",
    ),
    "nothing": ("x = 1", ReasonCode.HOOK_INVALID, "of type module, implements no hook"),
    "unmarked": (
        "def archzoo_model_loaded(model): pass",
        ReasonCode.HOOK_INVALID,
        "not marked as one; decorate it with archzoo.hooks.hookimpl",
    ),
    "unmarked beside a good one": (
        GOOD + "def archzoo_load_failed(): pass",
        ReasonCode.HOOK_INVALID,
        "archzoo_load_failed of 'hooks = hk_bad'",
    ),
    "near name": (
        wrong("def archzoo_model_loadet(model): pass"),
        ReasonCode.HOOK_INVALID,
        "not a hook of this archzoo; did you mean archzoo_model_loaded?",
    ),
    "far name": (wrong("def zzz(): pass"), ReasonCode.HOOK_INVALID, "there are archzoo_arch"),
    "unknown argument": (
        wrong("def archzoo_model_loaded(model: 'Model', stats) -> None: pass"),
        ReasonCode.HOOK_INVALID,
        "\n  plugin: hooks = hk_bad\n  hook: archzoo_model_loaded\n"
        "  expected: archzoo_model_loaded(model, report), or fewer arguments\n"
        "  found: archzoo_model_loaded(model, stats)\n"
        "  reason: argument 'stats' is not expected; ",
    ),
    "self in a function": (
        wrong("def archzoo_load_failed(self): pass"),
        ReasonCode.HOOK_INVALID,
        "found: archzoo_load_failed(self)",
    ),
    "default": (
        wrong("def archzoo_model_loaded(model, report=None): pass"),
        ReasonCode.HOOK_INVALID,
        "'report' has a default",
    ),
    "keyword only": (
        wrong("def archzoo_model_loaded(*, model): pass"),
        ReasonCode.HOOK_INVALID,
        "argument 'model' is not filled",
    ),
    "keywords": (
        wrong("def archzoo_model_loaded(**rest): pass"),
        ReasonCode.HOOK_INVALID,
        "argument '**rest' is not filled",
    ),
    "coroutine": (
        wrong("async def archzoo_model_loaded(model): pass"),
        ReasonCode.HOOK_INVALID,
        "write a plain function",
    ),
    "generator": (
        wrong("def archzoo_architectures():\n    yield 'X'"),
        ReasonCode.HOOK_INVALID,
        "write a plain function",
    ),
    "wrapper": (
        f"{HEAD}@hookimpl(wrapper=True)\ndef archzoo_architectures():\n    return (yield)\n",
        ReasonCode.HOOK_INVALID,
        "no hook can be wrapped",
    ),
    "wrapper that is none": (
        f"{HEAD}@hookimpl(wrapper=True)\ndef archzoo_architectures():\n    return 1\n",
        ReasonCode.HOOK_INVALID,
        "PluginValidationError",
    ),
    "newer": (
        "ARCHZOO_HOOKS_VERSION = 2\n" + wrong("def archzoo_model_saved(model): pass"),
        ReasonCode.HOOK_VERSION,
        "needs version 2 of the hooks, this archzoo has 1; run: pip install --upgrade archzoo",
    ),
    "version 0": ("ARCHZOO_HOOKS_VERSION = 0\n" + GOOD, ReasonCode.HOOK_INVALID, "is 0, exp"),
    "version text": ("ARCHZOO_HOOKS_VERSION = '1'\n" + GOOD, ReasonCode.HOOK_INVALID, "is '1'"),
    "version bool": ("ARCHZOO_HOOKS_VERSION = True\n" + GOOD, ReasonCode.HOOK_INVALID, "is True"),
    "raising hook": (
        wrong("def archzoo_architectures():\n    raise KeyError('k')"),
        ReasonCode.HOOK_RAISED,
        "archzoo_architectures of 'hooks = hk_bad' raised KeyError: 'k' (",
    ),
    "exiting hook": (
        wrong("def archzoo_architectures():\n    raise SystemExit"),
        ReasonCode.HOOK_RAISED,
        "raised SystemExit (",
    ),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_a_broken_plugin_disturbs_nobody(plugin: Write, case: str) -> None:
    source, code, text = BROKEN[case]
    good, last = plugin("good", GOOD), plugin("last", ANSWER.format(answer="{'Last': 'm:L'}"))
    plugins = HookPlugins((good, plugin("bad", source), last))
    assert [name for _, name, _ in plugins.architectures()] == ["GoodForCausalLM", "Last"]
    label, reason = only_problem(plugins)
    assert (label, reason.code) == ("zq-bad 1.0", code)
    assert text in str(reason)
    assert told(plugins, "zq-good") == [] and seen("good") == ["m"]
    plugins.architectures()
    assert len(plugins.problems()) == 1, "found once, told once"


@pytest.mark.parametrize(
    ("attr", "code", "text"),
    [
        ("absent", ReasonCode.HOOK_LOAD_FAILED, "has no attribute 'absent'"),
        ("nothing", ReasonCode.HOOK_INVALID, "of type NoneType, implements no hook"),
        ("number", ReasonCode.HOOK_INVALID, "of type int, implements no hook"),
        ("Hooks", ReasonCode.HOOK_INVALID, "it belongs to a class; name an instance"),
        ("hostile", ReasonCode.HOOK_INVALID, "cannot be read: RuntimeError: dir"),
    ],
)
def test_a_target_that_is_no_plugin(plugin: Write, attr: str, code: ReasonCode, text: str) -> None:
    source = HEAD + (
        "nothing, number = None, 7\n"
        "class Hooks:\n"
        "    @hookimpl\n    def archzoo_model_loaded(self, model): pass\n"
        "class Hostile:\n"
        "    def __dir__(self): raise RuntimeError('dir')\n"
        "hostile = Hostile()\n"
    )
    good = plugin("good", GOOD)
    plugins = HookPlugins((plugin("a", source, attr), good))
    assert [entry for entry, *_ in plugins.architectures()] == [good]
    reason = only_problem(plugins)[1]
    assert reason.code is code and text in str(reason) and f"hooks = hk_a:{attr}" in str(reason)


def test_every_fault_of_a_plugin_is_told(plugin: Write) -> None:
    source = wrong("def archzoo_model_loaded(a, b): pass") + wrong("def archzoo_x(): pass")
    plugins = HookPlugins((plugin("bad", source),))
    plugins.architectures()
    assert len(plugins.problems()) == 3


def test_a_hook_for_another_archzoo_may_be_optional(plugin: Write) -> None:
    source = GOOD + "@hookimpl(optionalhook=True)\ndef archzoo_model_saved(model): pass\n"
    plugins = HookPlugins((plugin("good", source),))
    assert len(plugins.architectures()) == 1 and plugins.problems() == ()


def test_an_older_or_equal_version_is_served(plugin: Write) -> None:
    plugins = HookPlugins((plugin("good", "ARCHZOO_HOOKS_VERSION = 1\n" + GOOD),))
    assert len(plugins.architectures()) == 1


def test_an_unready_plugin_is_not_loaded(plugin: Write) -> None:
    ready = plugin("a", OBSERVER)
    missing = Reason(ReasonCode.REQUIREMENT_MISSING, "needs zq", "pip install zq")
    faulty = HookEntry("zq-b 1", "zq-b", Entry("hooks", fault=missing))
    unready = HookEntry(ready.distribution, ready.key, ready.entry, (missing,))
    assert ready.ready and not unready.ready and not faulty.ready
    plugins = HookPlugins((unready, faulty))
    assert plugins.architectures() == () and told(plugins, "zq-a") == []
    assert plugins.problems() == () and "hk_a" not in sys.modules


def test_an_interrupt_passes(plugin: Write) -> None:
    source = wrong("def archzoo_model_loaded():\n    raise KeyboardInterrupt")
    plugins = HookPlugins((plugin("a", source),))
    with pytest.raises(KeyboardInterrupt):
        told(plugins, "zq-a")
    with pytest.raises(KeyboardInterrupt):
        HookPlugins((plugin("b", "raise KeyboardInterrupt"),)).architectures()


# --- plugins that call back, threads


def test_a_plugin_is_not_asked_about_what_it_does_itself(plugin: Write) -> None:
    source = HEAD + (
        "import hk_shared\n"
        "seen.append(hk_shared.plugins.architectures())\n"
        "@hookimpl\n"
        "def archzoo_architectures():\n"
        "    seen.append(hk_shared.plugins.architectures())\n"
        "    return {'X': 'm:C'}\n"
    )
    plugin("shared", "plugins = None\n")
    first, second = plugin("a", source), plugin("b", source.replace("'X'", "'Y'"))
    shared = import_module("hk_shared")
    shared.plugins = HookPlugins((first, second))
    found = shared.plugins.architectures()
    assert [name for _, name, _ in found] == ["X", "Y"]
    assert all(entry != first for answer in seen("a") for entry, *_ in answer)
    assert shared.plugins.problems() == ()


def test_an_observer_that_loads_a_model_does_not_observe_it(plugin: Write) -> None:
    source = HEAD + (
        "import hk_shared\n"
        "@hookimpl\n"
        "def archzoo_model_loaded(model):\n"
        "    seen.append(model)\n"
        "    hk_shared.again()\n"
    )
    plugin("shared", "again = None\n")
    both = frozenset({"zq-a", "zq-b"})
    plugins = HookPlugins((plugin("a", source), plugin("b", OBSERVER)))
    shared = import_module("hk_shared")
    shared.again = lambda: plugins.observe(
        "archzoo_model_loaded", serving="", everywhere=both, model="draft", report=None
    )
    assert told(plugins, "", both) == []
    assert (seen("a"), seen("b")) == (["m"], ["draft", "m"])


def test_threads_get_the_same_answers(plugin: Write) -> None:
    slow = "import time\ntime.sleep(0.1)\n" + GOOD
    plugins = HookPlugins((plugin("good", slow), plugin("bad", "import zq_nowhere")))
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(plugins.architectures())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and {len(answer) for answer in answers} == {1}
    assert len(plugins.problems()) == 1


# --- whole distributions


def test_hooks_of_a_catalog(live_site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = "print('noise')\nimport json\n" + GOOD
    group = "archzoo.plugins"
    live_site.install("zq-good", {"h": "hk_good"}, files={"hk_good.py": noisy}, group=group)
    live_site.install("zq-gone", {"h": "hk_gone:x.y"}, group=group)
    live_site.install("zq-bad", {"h": "not a target!"}, group=group)
    live_site.install("zq-needs", {"h": "hk_n"}, requires=["zq-no-such>=1"], group=group)
    live_site.install("Zq.Off", {"h": "hk_off"}, files={"hk_off.py": GOOD}, group=group)
    source = live_site.catalog(plugins=frozenset({"zq-good", "zq-gone", "zq-bad", "zq-needs"}))
    plugins = hooks_of(source)
    assert hooks_of(source) is plugins
    assert capsys.readouterr().out == "" and "hk_good" not in sys.modules
    ((entry, name, target),) = plugins.architectures()
    assert (entry.key, entry.distribution, entry.line) == ("zq-good", "zq-good 1.0", "h = hk_good")
    assert (name, target) == ("GoodForCausalLM", "hk_good.model:Good")
    assert capsys.readouterr().out == "noise\n" and "hk_off" not in sys.modules
    label, reason = only_problem(plugins)
    assert (label, reason.code) == ("zq-gone 1.0", ReasonCode.HOOK_LOAD_FAILED)
    assert "'h = hk_gone:x.y'" in reason.problem and "No module named 'hk_gone'" in reason.problem


def test_a_heavy_library_comes_in_only_when_a_hook_is_called(site: Site) -> None:
    files = {"hk_heavy.py": "import torch\n" + GOOD, "torch.py": ""}
    site.install("zq-heavy", {"h": "hk_heavy"}, files=files, group="archzoo.plugins")
    script = (
        "import sys\n"
        "from archzoo.registry import catalog\n"
        "from archzoo.registry.late import hooks_of\n"
        "plugins = hooks_of(catalog())\n"
        "catalog().providers()\n"
        "plugins.observe('archzoo_load_failed', serving='x', everywhere=frozenset())\n"
        "before = 'torch' in sys.modules\n"
        "print(before, len(plugins.architectures()), 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False", "1", "True"], done.stderr


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 0, "<lambda>()"),
        (HookPlugins.observe, "observe(hook, /, *, serving, everywhere, **values)"),
        (HookPlugins(()).problems, "problems()"),
        (test_no_plugins, "test_no_plugins()"),
        (told, "told(plugins, serving, everywhere=frozenset())"),
    ],
)
def test_describe_signature(function: Callable[..., object], text: str) -> None:
    assert describe_signature(function) == text
