"""What people see of the registry, letter for letter; ``make screens`` draws them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.screens import GOLDEN, PICTURES, WIDTHS, draw


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PLUGINS", "STRICT", "PREFER", "OBSERVERS", "EXTERNAL_MODEL_PACKAGE"):
        monkeypatch.delenv(f"ARCHZOO_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("width", WIDTHS)
def test_screens_are_as_drawn(width: int) -> None:
    drawn = draw(width)
    kept = {
        path.stem.rpartition("-")[0]: path.read_text() for path in GOLDEN.glob(f"*-{width}.txt")
    }
    assert {name: f"{text}\n" for name, text in drawn.items()} == kept


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    for name, text in draw(width).items():
        long = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
        assert not long, f"{name}: {long}"


def test_pictures_are_there() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == {"list", "why-lacking", "doctor-probe"}
