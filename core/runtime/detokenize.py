"""Token ids to text while they arrive: each piece of text once, never half a character.

A token alone has no text: one character may take four tokens, and some tokenizers drop the space
of a sequence's first word. So a short window of recent tokens is decoded at each step and only
what is new in it is given out::

    window text   "…the last words" + new         given = characters given out before
                  [0 .......... given) [given .. settled) [settled .. )
                                        the answer         an open character

The window is cut to its last tokens now and then; the work for a token does not grow with the
length of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_KEEP = 4
"""Tokens kept when the window is cut: an open character has at most 3 bytes, hence 3 tokens."""
_WINDOW = 16
"""Tokens the window may reach before it is cut."""
_OPEN = "\ufffd"
"""What a decoder shows for bytes that are no character, or not yet."""


class PieceDecoder(Protocol):
    """What the detokenizer asks of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, hidden ones left out, malformed bytes as U+FFFD."""
        ...

    def is_hidden(self, token_id: int) -> bool:
        """Whether ``decode`` drops this id before it joins the others."""
        ...

    def is_byte_piece(self, token_id: int) -> bool:
        """Whether the id is one raw byte whose meaning its byte neighbours decide together."""
        ...


class Detokenizer:
    """Text of one growing sequence of ids.

    The texts given out by ``push`` and ``flush``, put together, are ``decoder.decode`` of all ids.

    Args:
        decoder: the tokenizer.
    """

    def __init__(self, decoder: PieceDecoder) -> None:
        """Nothing decoded yet."""
        self._decoder = decoder
        self._window: list[int] = []
        self._given = 0

    def push(self, token_id: int) -> str:
        """Text that is settled by this token; empty while a character is open."""
        if self._decoder.is_hidden(token_id):
            return ""
        self._window.append(token_id)
        if self._decoder.is_byte_piece(token_id):
            # One bad byte makes the whole run of byte pieces unreadable: wait for its end.
            return ""
        text = self._decoder.decode(self._window)
        settled = len(text) - text.endswith(_OPEN)
        new = text[self._given : settled]
        self._given = max(self._given, settled)
        if len(self._window) >= _WINDOW:
            self._cut(len(text) - self._given)
        return new

    def flush(self) -> str:
        """What is left, open characters as U+FFFD. The sequence is over."""
        new = self._decoder.decode(self._window)[self._given :]
        self._given += len(new)
        return new

    def _cut(self, held: int) -> None:
        """Shorten the window; its last ``held`` characters are still to be given out."""
        del self._window[:-_KEEP]
        self._given = len(self._decoder.decode(self._window)) - held
