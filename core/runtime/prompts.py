"""What may be given as a prompt, and how kinds are told apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from ..errors import InputError
from .request import check_prompt, integer

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids (a list, an array or a tensor), or chat messages (mappings with ``role`` and
``content``, which is a text or a list of text parts)."""


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


def check_text(text: object, where: str = "the text") -> None:
    """Refuse what is no text.

    Raises:
        InputError: another type, or characters that are none.
    """
    if not isinstance(text, str):
        raise InputError(
            f"a prompt text is a string, not {type(text).__name__}; decode bytes first"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds {text[error.start]!r} at character {error.start}, half of a surrogate "
            "pair and no character; remove it"
        ) from error


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a list of their own; contents are texts, lists of text parts, or missing.

    Raises:
        InputError: no message, or one that has no role or a content of another kind; names its
            index and role.
    """
    if not messages:
        raise InputError("empty conversation: 0 messages; give at least one")
    found: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(
                f"message {at} is {message!r:.200}; it must be a mapping with 'role', a text, "
                "and 'content'"
            )
        where = f"message {at} ({message['role']}): content"
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_checked_part(f"{where}[{n}]", part) for n, part in enumerate(content)]
        elif isinstance(content, str):
            check_text(content, where)
        elif content is not None or not any(message.get(each) for each in _CALLS):
            raise InputError(
                f"{where} is {content!r:.200}; it must be a text or a list of text parts, and may "
                f"be None only beside {' or '.join(_CALLS)}"
            )
        found.append({**message, "content": content})
    return found


_CALLS = ("tool_calls", "function_call")
"""Keys of messages that need no content."""


def _checked_part(where: str, part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise InputError(
            f"{where} is a part of type {kind!r:.200}; only text parts can be read: "
            "{'type': 'text', 'text': …}"
        )
    if not isinstance(part.get("text"), str):
        raise InputError(f"{where}['text'] is {part.get('text')!r:.200}; it must be a text")
    check_text(part["text"], f"{where}['text']")
    return dict(part)


def with_content_the_template_reads(
    messages: Sequence[dict[str, Any]], render: Callable[[Sequence[Message]], str]
) -> list[dict[str, Any]]:
    """Lists of text parts where a chat template reads them, their joined text elsewhere.

    A template that expects texts prints a list as Python spells it, raises, or leaves it out. So
    the conversation is rendered once with a mark for each text: a list is read if its mark comes
    out and not as part of a spelled list.

    Args:
        messages: checked ones.
        render: the template.
    """
    if not any(isinstance(message["content"], list) for message in messages):
        return list(messages)
    marks = [f"mark{at}mark" for at in range(len(messages))]
    marked = [
        {**message, "content": _replaced(message["content"], mark)}
        for message, mark in zip(messages, marks, strict=True)
    ]
    try:
        shown = render(marked)
    except Exception:  # a template may raise anything; it does not read these lists
        shown = ""
    return [
        message
        if mark in shown and not re.search(rf"""['"]text['"]\s*:\s*['"]{mark}""", shown)
        else {**message, "content": _joined(message["content"])}
        for message, mark in zip(messages, marks, strict=True)
    ]


def _replaced(content: Any, mark: str) -> Any:
    if isinstance(content, list):
        return [{"type": "text", "text": mark}]
    return content if content is None else mark


def _joined(content: Any) -> Any:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content
