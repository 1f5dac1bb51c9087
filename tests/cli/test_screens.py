"""What people see of the plain-text commands, letter for letter; ``make screens`` draws them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.screens import GOLDEN, PICTURED, PICTURES, WIDTHS, draw


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("screens"))
        return {width: draw(width) for width in WIDTHS}


@pytest.mark.parametrize("width", WIDTHS)
def test_screens_are_as_drawn(width: int, screens: dict[int, dict[str, str]]) -> None:
    kept = {
        path.stem.rpartition("-")[0]: path.read_text() for path in GOLDEN.glob(f"*-{width}.txt")
    }
    assert {name: f"{text}\n" for name, text in screens[width].items()} == kept


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen(width: int, screens: dict[int, dict[str, str]]) -> None:
    for name, text in screens[width].items():
        assert all(len(line) <= width for line in text.splitlines()), name


def test_a_command_to_copy_stands_on_one_line(screens: dict[int, dict[str, str]]) -> None:
    for text in screens[80].values():
        for line in text.splitlines():
            assert not line.rstrip().endswith("pip install"), line


def test_pictures_show_the_screens() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(PICTURED)
    for name in PICTURED:
        words = (GOLDEN / f"{name}-80.txt").read_text().split()
        picture = (PICTURES / f"{name}.svg").read_text()
        assert all(word in picture for word in words if word.isalnum()), name


def test_pictures_are_in_the_readme() -> None:
    readme = (Path(PICTURES).parents[1] / "README.md").read_text()
    assert "docs/screens/list.svg" in readme
