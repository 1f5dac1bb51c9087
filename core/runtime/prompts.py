"""What may be given as a prompt, and how kinds are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from .request import check_prompt, integer

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids (a list, an array or a tensor), or chat messages (mappings with ``role`` and
``content``)."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A list or tuple of things, not a text, an array or a tensor."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_chat(prompt: object) -> TypeGuard[Sequence[Message]]:
    """A list of messages."""
    return is_list(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def is_batch(prompt: object) -> TypeGuard[Sequence[Any]]:
    """A list of prompts: its first member is itself a text, a list, an array or a tensor."""
    if not is_list(prompt) or not prompt:
        return False
    first = prompt[0]
    return isinstance(first, str | Sequence) or getattr(first, "ndim", 0) == 1


def checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """Token ids as a list; none are allowed.

    Raises:
        InputError: something that is no list of ids, or an id outside the vocabulary.
    """
    if not isinstance(ids, str | bytes) and isinstance(ids, Iterable):
        given: Any = ids
        ids = given.tolist() if hasattr(given, "tolist") else list(given)
        if ids == []:
            return []
    return check_prompt(ids, vocab_size)


def chunk_of(size: int | None) -> int | None:
    """A chunk size that a caller gives.

    Raises:
        InputError: not a whole number of at least 1.
    """
    return None if size is None else integer("chunk_size", size, 1)
