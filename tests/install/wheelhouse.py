"""Wheels for the matrix: archzoo's own, and small plugins written here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--quiet")
HERE_ONLY = ("--no-deps", "--no-index")


@dataclass(frozen=True)
class PluginProject:
    """A third-party plugin that is small enough to read at a glance.

    Args:
        name: of the distribution.
        entries: architecture -> target, of the group ``archzoo.models``.
        modules: path -> source, below the project's folder.
        requires: what it needs.
        extras: what each of its extras adds.
    """

    name: str
    entries: Mapping[str, str]
    modules: Mapping[str, str]
    requires: tuple[str, ...] = ("archzoo>=0.1,<0.2",)
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def write(self, parent: Path) -> Path:
        """Lay the project out in a folder of its own."""
        folder = parent / self.name
        for relative, source in self.modules.items():
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        (folder / "pyproject.toml").write_text(self._pyproject())
        return folder

    def _pyproject(self) -> str:
        """JSON's texts and lists of texts are TOML too."""
        tops = sorted({relative.partition("/")[0] for relative in self.modules})
        lines = [
            "[build-system]",
            'requires = ["hatchling"]',
            'build-backend = "hatchling.build"',
            "[project]",
            f"name = {json.dumps(self.name)}",
            'version = "1.0"',
            'requires-python = ">=3.11"',
            f"dependencies = {json.dumps(self.requires)}",
            "[project.optional-dependencies]",
            *(f"{extra} = {json.dumps(added)}" for extra, added in self.extras.items()),
            '[project.entry-points."archzoo.models"]',
            *(f"{name} = {json.dumps(target)}" for name, target in self.entries.items()),
            "[tool.hatch.build.targets.wheel]",
            f"packages = {json.dumps(tops)}",
        ]
        return "\n".join([*lines, ""])


def build_wheels(projects: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Build projects as pip builds them, offline.

    Args:
        projects: folders with a pyproject.toml.
        folder: where the wheels go.

    Returns:
        Distribution, as the name of its wheel spells it -> wheel.
    """
    run([*PIP, "wheel", *HERE_ONLY, "--no-build-isolation", "--wheel-dir", folder, *projects])
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


def install_wheels(wheels: Sequence[Path], folder: Path) -> Path:
    """Install wheels into a folder, without what they depend on."""
    run([*PIP, "install", *HERE_ONLY, "--no-compile", "--target", folder, *wheels])
    return folder


def run(command: Sequence[str | Path]) -> None:
    """Run a tool that is expected to work; what it said is shown when it did not."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
