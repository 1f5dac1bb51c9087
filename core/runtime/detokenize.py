"""Token ids to text while they arrive: each piece of text once, never half a character.

A token alone has no text: one character may take four tokens, and some tokenizers drop the space
of a sequence's first word. So new ids are decoded behind a short window of those before them (the
prompt's to begin with), and only what is new in it is given out::

    window text   "…the last words" + new         given = characters given out before
                  [0 .......... given) [given .. settled) [settled .. )
                                        the answer         an open character

The window is cut to its last units now and then (a unit is a token, or the byte pieces of one
character); the work for a token does not grow with the length of the output.

A decoder of the ``tokenizers`` library turns a whole run of byte pieces into U+FFFD where one byte
of it is malformed; text that is on a screen cannot be taken back. So a run is read as UTF-8 while
it comes: what is a character is text, and each byte that belongs to none is U+FFFD. See
docs/decisions/0015-what-text-is.md, also for why ``tokenizers.decoders.DecodeStream`` is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Protocol

_KEEP = 4
"""Units kept when the window is cut: an open character has at most 3 bytes, hence 3 tokens."""
_WINDOW = 16
"""Units the window may reach before it is cut; tokens of the context that are read."""
_OPEN = "\ufffd"
"""What a decoder shows for bytes that are no character, or not yet."""


class PieceDecoder(Protocol):
    """What the detokenizer asks of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, hidden ones left out, malformed bytes as U+FFFD."""
        ...

    def hidden_text(self, token_id: int) -> str | None:
        """How an id is spelled that ``decode`` drops before it joins the others; None if not."""
        ...

    def byte_of(self, token_id: int) -> int | None:
        """The byte, of an id that is one raw byte whose byte neighbours decide what it means."""
        ...

    @property
    def replacement(self) -> Sequence[int]:
        """Byte pieces of U+FFFD, valid in themselves; empty for a tokenizer without them."""
        ...


class Detokenizer:
    """Text of one growing sequence of ids, from a place in it on.

    The texts given out by ``push`` and ``flush``, put together, are what the decoding of context
    and ids together has beyond that of the context alone.

    Args:
        decoder: the tokenizer.
        context: ids that come first; a character begun there is given out when it is whole.
    """

    def __init__(self, decoder: PieceDecoder, context: Sequence[int] = ()) -> None:
        """Nothing is decoded before the first id comes."""
        self._decoder = decoder
        self._window: list[Sequence[int]] = []
        self._bytes: list[int] = []
        self._given = 0
        self._known: str | None = None
        self._context = self._last(context)

    def push(self, token_id: int) -> str:
        """Text that is settled by this token; empty while a character is open."""
        if self._decoder.hidden_text(token_id) is not None:
            return ""
        self._begin()
        return self._new(self._read(token_id))

    def flush(self) -> str:
        """What is left, open characters as U+FFFD. The sequence is over."""
        self._begin()
        new = self._read_junk() + self._decode()[self._given :]
        self._given += len(new)
        return self._new(new)

    def _last(self, context: Sequence[int]) -> list[int]:
        """Enough of the context's end; the whole of it where it is short."""
        last: list[int] = []
        for token_id in reversed(context):
            if self._decoder.hidden_text(token_id) is None:
                last.append(token_id)
                if len(last) == _WINDOW:
                    break
        return last[::-1]

    def _begin(self) -> None:
        """Read the context, once; what it shows of an open character is not shown again."""
        if self._known is not None:
            return
        for token_id in self._context:
            self._read(token_id)
        self._known = self._decode()[self._given :] + _OPEN * len(self._bytes)

    def _new(self, text: str) -> str:
        """Text less what the context showed already, if it is what comes first."""
        if not text or not self._known:
            return text
        shared = len(commonprefix([text, self._known]))
        self._known = self._known[shared:] if shared == len(text) else ""
        return text[shared:]

    def _read(self, token_id: int) -> str:
        """The text that a visible id settles."""
        if self._decoder.byte_of(token_id) is None:
            return self._read_junk() + self._read_unit([token_id])
        before = ""
        if self._bytes and self._state([*self._bytes, token_id]) is None:
            before = self._read_junk()
        self._bytes.append(token_id)
        state = self._state(self._bytes)
        if state is None:
            return before + self._read_junk()
        if not state:
            return before
        unit, self._bytes = self._bytes, []
        return before + self._read_unit(unit)

    def _state(self, ids: Sequence[int]) -> bool | None:
        """Whether byte pieces are whole characters; None if they never will be."""
        try:
            bytes(self._decoder.byte_of(each) or 0 for each in ids).decode()
        except UnicodeDecodeError as error:
            return False if error.reason == "unexpected end of data" else None
        return True

    def _read_junk(self) -> str:
        """Bytes that wait for the rest of a character, which will not come."""
        text = ""
        for _ in self._bytes:
            valid = self._decoder.replacement
            text += self._read_unit(valid) if valid else _OPEN
        self._bytes = []
        return text

    def _read_unit(self, ids: Sequence[int]) -> str:
        self._window.append(ids)
        text = self._decode()
        settled = len(text) - text.endswith(_OPEN)
        new = text[self._given : settled]
        self._given = max(self._given, settled)
        if len(self._window) >= _WINDOW:
            held = len(text) - self._given
            del self._window[:-_KEEP]
            self._given = len(self._decode()) - held
        return new

    def _decode(self) -> str:
        return self._decoder.decode([each for unit in self._window for each in unit])
