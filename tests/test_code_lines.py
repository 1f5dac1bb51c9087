"""A dense model is a page of code; what counts as a line of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DENSE = ("adapters", "model", "heads", "__init__")
"""Modules of archzoo_qwen3 that make Qwen2 and Qwen3, heads included."""


@pytest.fixture(scope="module")
def counter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_lines", ROOT / "benchmarks/code_lines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comments_blank_lines_and_docstrings_are_no_code(counter: ModuleType) -> None:
    source = '''"""One
two."""

x = 1  # counts once

# not
def f(
    a,
):
    """No."""
    return """text
that counts"""
y: int
"""About y."""
'''
    assert counter.code_lines(source) == 7
    assert counter.code_lines("") == 0


def test_qwen2_and_qwen3_are_at_most_150_lines(counter: ModuleType) -> None:
    folder = ROOT / "plugins/qwen3/archzoo_qwen3"
    found = dict(counter.counts([folder / f"{name}.py" for name in DENSE]))
    assert len(found) == len(DENSE)
    assert sum(found.values()) <= 150


def test_the_readme_says_how_many_lines_a_plugin_has(counter: ModuleType) -> None:
    row = re.compile(r"^\| \[`(plugins/\w+)`\]\(.*\| (\d+)[^|]*\|$", re.MULTILINE)
    said = dict(row.findall((ROOT / "README.md").read_text()))
    packages = {f"plugins/{each.parent.name}": each for each in ROOT.glob("plugins/*/archzoo_*")}
    assert said.keys() == packages.keys()
    for plugin, package in packages.items():
        counted = sum(count for _, count in counter.counts([package]))
        assert abs(int(said[plugin]) - counted) <= counted // 10, f"{plugin}: {counted}"
