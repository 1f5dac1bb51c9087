"""The folder core/ and the import name archzoo are one and the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import archzoo

ROOT = Path(__file__).parent.parent


def test_link_points_at_core() -> None:
    assert (ROOT / "src/archzoo").resolve() == ROOT / "core", "git config core.symlinks true"


def test_core_is_not_importable_under_its_folder_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import core"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode and "pip install -e ." in done.stderr


def test_types_are_shipped() -> None:
    assert archzoo.__file__ and Path(archzoo.__file__).with_name("py.typed").exists()
