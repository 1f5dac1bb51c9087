"""Lines of code of Python files, one counter for all: no blank lines, comments, docstrings.

    python benchmarks/code_lines.py                      every plugin here, file by file
    python benchmarks/code_lines.py FILE_OR_FOLDER …     others

A line counts when a token of the program stands on it; a docstring is a string that is a whole
statement.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def code_lines(source: str) -> int:
    """How many lines of a program are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _lines_of_docstrings(ast.parse(source)))


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def counts(paths: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Each Python file of files and folders, and its lines of code."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file, code_lines(file.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> None:
    """Print a line for each file, and the sum."""
    paths = [Path(each).resolve() for each in arguments] or sorted(ROOT.glob("plugins/*/archzoo_*"))
    total = 0
    for file, count in counts(paths):
        total += count
        print(f"{count:6}  {file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}")
    print(f"{total:6}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
