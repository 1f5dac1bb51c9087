"""What the documents say of the tree is so: links, numbers, layers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    file
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "plugins/*/*.md")
    for file in ROOT.glob(pattern)
)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchor(heading: str) -> str:
    """A heading as GitHub calls it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    for link in LINK.findall(file.read_text()):
        place, _, part = link.partition("#")
        if "://" in place:
            continue
        target = file.parent / place if place else file
        assert target.exists(), link
        if part:
            assert part in map(anchor, HEADING.findall(target.read_text())), link


def test_decisions_are_numbered_without_a_gap() -> None:
    files = sorted(ROOT.glob("docs/decisions/*.md"))
    assert [int(file.name[:4]) for file in files] == [*range(1, len(files) + 1)]
    for number, file in enumerate(files, 1):
        assert file.read_text().startswith(f"# {number}. "), file.name


def test_decisions_are_cited_by_their_numbers() -> None:
    cited = re.compile(r"\[decision (\d+)\]\((?:[\w./]*/)?(\d{4})-")
    found = [each for file in DOCUMENTS for each in cited.findall(file.read_text())]
    assert found and all(int(number) == int(name) for number, name in found)


def test_layers_are_those_that_are_checked() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in linter["contracts"] if "layers" in each)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rule = text[text.index("`cli` →") : text.index(".\n", text.index("`cli` →"))]
    assert re.findall(r"`([^`]+)`", rule) == layers
