"""Text to token ids and back, by the tokenizer that lies beside a checkpoint.

``transformers`` chooses the tokenizer: it knows which class a model type needs although the files
say otherwise, and which published files need a repair. A second reading of tokenizer.json here
would be faster to start and wrong for some checkpoints without a sign. The import (a second) is
made when the first tokenizer is loaded, so that scoring token ids never waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError
from .stopping import stop_ids_of

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""One of these makes a directory one that has a tokenizer."""


class Tokenizer(Protocol):
    """What the runtime asks of a tokenizer."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """End ids the tokenizer names."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Id that begins a sequence, if there is one."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat`` can serve."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        ...

    def apply_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation."""
        ...

    def hidden_text(self, token_id: int) -> str | None:
        """How an id is spelled that ``decode`` leaves out, a special token; None for others."""
        ...

    def byte_of(self, token_id: int) -> int | None:
        """The byte, of an id that is one raw byte and is decoded with its byte neighbours."""
        ...

    @property
    def replacement(self) -> Sequence[int]:
        """Byte pieces of U+FFFD; empty for a tokenizer without them."""
        ...


class TransformersTokenizer:
    """A ``transformers`` tokenizer behind the runtime's protocol.

    Args:
        inner: any tokenizer of ``transformers``, already built.
    """

    def __init__(self, inner: Any) -> None:
        """Look up which ids are special and which are bytes."""
        self.inner = inner
        self._special = _special_ids(inner)
        self._bytes = _bytes_of_ids(inner)
        ids = {byte: token_id for token_id, byte in self._bytes.items()}
        malformed = "\ufffd".encode()
        self.replacement = [ids[byte] for byte in malformed] if ids.keys() >= {*malformed} else []

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """End ids the tokenizer names; generation_config.json may name more."""
        return stop_ids_of(self.inner.eos_token_id)

    @property
    def bos_token_id(self) -> int | None:
        """Id that begins a sequence, if there is one."""
        found: int | None = self.inner.bos_token_id
        return found

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat`` can serve."""
        return bool(self.inner.chat_template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text; the spelling of a special token in it becomes that token.
            add_special_tokens: put the ids that begin or end a sequence, as the tokenizer does.

        Raises:
            InputError: not a text, or one that is no valid Unicode.
        """
        _check_text(text)
        ids = self.inner.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; malformed bytes become U+FFFD, spaces stay as they are."""
        text: str = self.inner.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def apply_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation, by the checkpoint's chat template.

        Args:
            messages: mappings with at least ``role`` and ``content``.
            add_generation_prompt: end with what begins the assistant's turn.

        Raises:
            InputError: no template, or a conversation the template refuses.
        """
        if not self.has_chat_template:
            raise InputError(
                "this tokenizer has no chat template; pass a plain prompt, or add "
                "chat_template.jinja to the checkpoint"
            )
        _check_messages(messages)
        try:
            ids = self.inner.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:
            # A template is a program of the checkpoint's: it may raise anything.
            raise InputError(
                f"the chat template refuses this conversation: {error}; "
                "see which roles and order the model's card allows"
            ) from error
        return list(ids)

    def hidden_text(self, token_id: int) -> str | None:
        """How an id is spelled that ``decode`` leaves out; None for others.

        Special tokens are, and ids of a padded vocabulary that are no token; those say nothing.
        """
        token: str | None = self.inner.convert_ids_to_tokens(token_id)
        if token is None:
            return ""
        return token if token_id in self._special else None

    def byte_of(self, token_id: int) -> int | None:
        """The byte, of an id that is one raw byte and is decoded with its byte neighbours."""
        return self._bytes.get(token_id)


def load_tokenizer(path: Path) -> TransformersTokenizer:
    """The tokenizer beside a checkpoint. Local files only; no code of the checkpoint's runs.

    Args:
        path: checkpoint directory.

    Raises:
        InputError: no directory, no tokenizer in it, or one that cannot be read.
    """
    path = Path(path)
    require_tokenizer_files(path)
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # Broken files show as whatever the reader tripped over, up to the tokenizer
        # library's bare Exception.
        raise InputError(
            f"{path}: the tokenizer cannot be loaded: {type(error).__name__}: {error}; "
            "replace its files, or pass token ids"
        ) from error
    return TransformersTokenizer(inner)


def has_tokenizer_files(path: Path) -> bool:
    """Whether a directory has a tokenizer; reads nothing."""
    return any((path / name).is_file() for name in TOKENIZER_FILES)


def require_tokenizer_files(path: Path) -> None:
    """Refuse a directory without a tokenizer; reads nothing.

    Raises:
        InputError: there is none.
    """
    if not has_tokenizer_files(path):
        raise InputError(
            f"{path}: no tokenizer beside the checkpoint; pass token ids or add tokenizer.json"
        )


def _special_ids(inner: Any) -> frozenset[int]:
    """Ids that decoding with skip_special_tokens drops."""
    special = set(inner.all_special_ids)
    special.update(each for each, token in inner.added_tokens_decoder.items() if token.special)
    return frozenset(special)


def _bytes_of_ids(inner: Any) -> dict[int, int]:
    """Bytes of ``<0x00>`` … ``<0xFF>`` if this tokenizer decodes them to bytes, else none."""
    if inner.convert_tokens_to_string(["<0x41>"]) != "A":
        return {}
    vocabulary: Mapping[str, int] = inner.get_vocab()
    spelled = {f"<0x{byte:02X}>": byte for byte in range(256)}
    return {vocabulary[piece]: byte for piece, byte in spelled.items() if piece in vocabulary}


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(
            f"a prompt text is a string, not {type(text).__name__}; decode bytes first"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text holds {text[error.start]!r} at character {error.start}, half of a surrogate "
            "pair and no character; remove it"
        ) from error


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise InputError("empty conversation: 0 messages; give at least one")
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise InputError(
                f"message {at} is {message!r}; it must be a mapping with 'role' and 'content'"
            )
        if isinstance(message["content"], str):
            _check_text(message["content"])
