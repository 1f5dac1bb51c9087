"""The hooks that plugins may implement: names and arguments are added, never taken away."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pluggy
import pytest

from archzoo import hooks

ARGUMENTS = {
    "archzoo_architectures": (),
    "archzoo_model_loaded": ("model", "report"),
    "archzoo_load_failed": ("path", "error"),
}


def test_public_names_stay() -> None:
    assert {"HOOKS_VERSION", "HookSpecs", "HookWarning", "PROJECT", "hookimpl"} <= set(
        hooks.__all__
    )
    assert (hooks.PROJECT, hooks.HOOKS_VERSION) == ("archzoo", 1)


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_arguments_stay(name: str) -> None:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks.HookSpecs)
    specification = getattr(manager.hook, name).spec
    assert specification.argnames[: len(ARGUMENTS[name])] == ARGUMENTS[name]
    assert not specification.opts["firstresult"] and not specification.opts["historic"]
    assert inspect.getdoc(getattr(hooks.HookSpecs, name))


def test_an_addition_raises_the_version() -> None:
    """Version 1 has exactly these; more of them is version 2."""
    found = {name for name in vars(hooks.HookSpecs) if name.startswith("archzoo_")}
    assert (hooks.HOOKS_VERSION, found) == (1, set(ARGUMENTS))


def test_the_marker_is_pluggys() -> None:
    @hooks.hookimpl
    def archzoo_model_loaded(model: object) -> None: ...

    manager = pluggy.PluginManager("archzoo")
    holder = type("Holder", (), {"archzoo_model_loaded": staticmethod(archzoo_model_loaded)})()
    assert manager.parse_hookimpl_opts(holder, "archzoo_model_loaded") is not None


def test_a_hook_warning_can_be_filtered_with_all_user_warnings() -> None:
    assert issubclass(hooks.HookWarning, UserWarning)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("archzoo.hooks", {"torch", "transformers", "archzoo.runtime", "archzoo.registry"}),
        ("archzoo.registry", {"pluggy", "archzoo.hooks", "archzoo.registry.hook_plugins"}),
        ("archzoo.registry.hook_plugins", {"torch", "transformers", "archzoo.runtime"}),
    ],
)
def test_what_an_import_brings_in(module: str, absent: set[str]) -> None:
    script = f"import sys, {module}; print(sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
