"""Names that differ only in numbers are renamed alike, so each kind of name is looked up once.

A checkpoint of 58 layers with 256 experts has 45,000 tensors and a dozen kinds of names. Rules whose
patterns hold no number cannot tell one layer, or one expert, from another; what they make of one
name of a kind, they make of all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from .patterns import Pattern, is_number

_NUMBER = re.compile(r"(?<![^.])(?:0|[1-9][0-9]*)(?![^.])")
_STAND_IN = 10**9
"""The first number of a name is replaced by this one, the second by the next, …"""


Fixed = TypeVar("Fixed")
Answer = tuple[Fixed, str]
"""What is the same for all names of a kind, and a dotted text made of the name."""


class Outlines(Generic[Fixed]):
    """Remembers one answer for each kind of name.

    Args:
        ask: what a name leads to, by rules over whole components.
        patterns: of these rules; where one holds a number, nothing is remembered.
    """

    def __init__(self, ask: Callable[[str], Answer[Fixed]], patterns: Iterable[Pattern]) -> None:
        self._ask = ask
        self._usable = not any(is_number(part) for each in patterns for part in each.parts)
        self._known: dict[str, Answer[Fixed]] = {}

    def answer(self, name: str) -> Answer[Fixed]:
        """What a name leads to."""
        numbers = _NUMBER.findall(name)
        if not numbers or not self._usable:
            return self._ask(name)
        kind = _NUMBER.sub("#", name)
        if kind not in self._known:
            stand_ins = map(str, range(_STAND_IN, _STAND_IN + len(numbers)))
            fixed, text = self._ask(_NUMBER.sub(lambda _: next(stand_ins), name))
            self._known[kind] = fixed, _template(text)
        fixed, template = self._known[kind]
        return fixed, template.format(*numbers)


def _template(text: str) -> str:
    """The text with each stand-in as a field of ``str.format``."""
    text = text.replace("{", "{{").replace("}", "}}")
    return _NUMBER.sub(lambda found: f"{{{int(found[0]) - _STAND_IN}}}", text)
