"""When an output ends, and which of its text may be shown.

Stop ids are looked at first: they end the output and are no text. Stop strings are looked for in
the text, character by character, so that the result does not depend on how the text is cut into
tokens: the match that ends first wins, and of those the longest. Matching reads what every token
says, special ones too, at the place where they stand; the text that is shown leaves those out.
Text that may be the beginning of a stop string is held back until that is decided.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, InputError
from .detokenize import Detokenizer, PieceDecoder


class _Automaton:
    """Knuth, Morris and Pratt: how much of a pattern the text read so far ends with."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._border = [0] * (len(pattern) + 1)
        for at in range(1, len(pattern)):
            self._border[at + 1] = self._next(self._border[at], pattern[at])

    def step(self, char: str) -> bool:
        """Read one character; whether the pattern ends here."""
        self.matched = self._next(self.matched, char)
        return self.matched == len(self.pattern)

    def _next(self, matched: int, char: str) -> int:
        while matched and self.pattern[matched] != char:
            matched = self._border[matched]
        return matched + (self.pattern[matched] == char)


class StopStrings:
    """Finds the first stop string in a text that arrives in pieces.

    Args:
        stop: non-empty texts; none lets everything through.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """Nothing read yet."""
        self._automata = [_Automaton(text) for text in stop]
        self._held: deque[str] = deque()
        """What each character that was read and is not decided shows: itself, or nothing."""

    def push(self, text: str, shown: bool = True) -> tuple[str, bool]:
        """Read a piece of text.

        Args:
            text: what comes next.
            shown: False for text that is matched and never given back.

        Returns:
            The text that may be shown now, and whether a stop string was found. After that the
            rest of the text is gone and nothing more may be pushed.
        """
        if not self._automata:
            return text if shown else "", False
        for char in text:
            self._held.append(char if shown else "")
            # A list, not any(): every automaton has to read every character.
            ended = [len(a.pattern) for a in self._automata if a.step(char)]
            if ended:
                visible = self._release(max(ended))
                self._held.clear()
                return visible, True
        return self._release(max(automaton.matched for automaton in self._automata)), False

    def flush(self) -> str:
        """Text held back for a stop string that did not come. The text is over."""
        return self._release(0)

    def _release(self, keep: int) -> str:
        """All text but the last ``keep`` characters that were read."""
        return "".join(self._held.popleft() for _ in range(len(self._held) - keep))


class OutputText:
    """One request's output as text, and the place that knows whether it has ended.

    Text is made when it is asked for; only stop strings make it necessary at each token.

    Args:
        stop_ids: ids that end the output; they are no text.
        stop: stop strings.
        decoder: the tokenizer; None for ids only, then all text is empty.
        prompt_ids: what the output follows; its text is what the decoding of both together adds.

    Raises:
        InputError: stop strings without a tokenizer.
    """

    def __init__(
        self,
        stop_ids: Iterable[int] = (),
        stop: Sequence[str] = (),
        decoder: PieceDecoder | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """No token yet."""
        if stop and decoder is None:
            raise InputError(
                f"stop={list(stop)!r} needs a tokenizer to find text in the output; "
                "add tokenizer.json to the checkpoint, or use stop_token_ids"
            )
        self._stop_ids = frozenset(stop_ids)
        self._eager = bool(stop)
        self._strings = StopStrings(stop)
        self._decoder = decoder
        self._detokenizer = None if decoder is None else Detokenizer(decoder, prompt_ids)
        self._unread: list[int] = []
        self._closed = self._flushed = False
        self._text = ""
        self._taken = 0

    def push(self, token_id: int) -> bool:
        """Take the next token; whether the output stops with it."""
        stops = token_id in self._stop_ids
        if self._decoder is not None and not (
            stops and self._decoder.hidden_text(token_id) is None
        ):
            self._unread.append(token_id)
        found = self._eager and self._read()
        return found or stops

    def close(self) -> bool:
        """No token will follow: what was held back is text; whether a stop string ends in it."""
        self._closed = True
        return self._eager and self._read()

    @property
    def text(self) -> str:
        """All text so far, without what is held back."""
        self._read()
        return self._text

    def take(self) -> str:
        """The text that came since the last call, for streaming."""
        new = self.text[self._taken :]
        self._taken += len(new)
        return new

    def _read(self) -> bool:
        """Turn unread tokens into text; whether a stop string ended it."""
        if self._decoder is None or self._detokenizer is None or self._flushed:
            return False
        unread, self._unread = self._unread, []
        for token_id in unread:
            hidden = self._decoder.hidden_text(token_id)
            piece = self._detokenizer.push(token_id) if hidden is None else hidden
            if self._show(piece, hidden is None):
                return True
        if self._closed:
            self._flushed = True
            if self._show(self._detokenizer.flush()):
                return True
            self._text += self._strings.flush()
        return False

    def _show(self, piece: str, shown: bool = True) -> bool:
        visible, found = self._strings.push(piece, shown)
        self._text += visible
        self._flushed = self._flushed or found
        return found


def stop_ids_of(*sources: int | Iterable[int] | None) -> frozenset[int]:
    """End ids from wherever they stand: one id, a list of ids, or nothing, each."""
    ids: set[int] = set()
    for source in sources:
        if isinstance(source, Iterable):
            ids.update(source)
        elif source is not None:
            ids.add(source)
    return frozenset(ids)


def generation_eos_ids(directory: Path) -> frozenset[int]:
    """End ids that generation_config.json names; none without such a file.

    Chat models list ids there (end of turn, end of message) that the tokenizer does not name.

    Raises:
        ConfigError: the file is no JSON object, or the ids are no ids.
    """
    file = directory / "generation_config.json"
    if not file.is_file():
        return frozenset()
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"not valid JSON: {error}; repair or delete it", "", str(file)) from error
    if not isinstance(content, dict):
        raise ConfigError("holds no JSON object; repair or delete it", "", str(file))
    found = content.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in ids):
        raise ConfigError(
            f"{found!r} must be a token id or a list of token ids", "eos_token_id", str(file)
        )
    return frozenset(ids)
