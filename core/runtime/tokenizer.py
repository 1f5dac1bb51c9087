"""Text to token ids and back, by the tokenizer that lies beside a checkpoint.

``transformers`` chooses the tokenizer: it knows which class a model type needs although the files
say otherwise, and which published files need a repair. A second reading of tokenizer.json here
would be faster to start and wrong for some checkpoints without a sign. The import (a second) is
made when the first tokenizer is loaded, so that scoring token ids never waits for it.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from ..errors import ArchzooError, InputError
from ..registry.telling import warn_caller
from .prompts import Message, check_text, checked_messages, with_content_the_template_reads
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
    def tokens(self) -> Mapping[int, str]:
        """Every id that has a token, and how that is spelled in the vocabulary."""
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
        unused: ids that its vocabulary lists and that are no tokens.
    """

    def __init__(self, inner: Any, unused: Iterable[int] = ()) -> None:
        """Look up which ids are special and which are bytes."""
        self.inner, self._unused = inner, frozenset(unused)
        self._tokens: Mapping[int, str] | None = None
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
    def tokens(self) -> Mapping[int, str]:
        """Every id that has a token, and how that is spelled in the vocabulary."""
        if self._tokens is None:
            self._tokens = _tokens(self.inner, self._unused)
        return self._tokens

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
        check_text(text)
        with _refused("the tokenizer cannot read this text", "replace its files"):
            ids = self.inner.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; malformed bytes become U+FFFD, spaces stay as they are."""
        with _refused("the tokenizer cannot decode these ids", "replace its files"):
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
            messages: mappings with ``role`` and ``content``, a text or a list of text parts. Parts
                are joined for a template that does not read lists.
            add_generation_prompt: end with what begins the assistant's turn.

        Raises:
            InputError: no template, a conversation the template refuses, or a template that asks
                for more work than a prompt can need.
        """
        if not self.has_chat_template:
            raise InputError(
                "this tokenizer has no chat template; pass a plain prompt, or add "
                "chat_template.jinja to the checkpoint"
            )
        checked = checked_messages(messages)
        # A template is a program of the checkpoint's: it may raise anything.
        with _refused(
            "the chat template refuses this conversation",
            "see which roles and order the model's card allows",
        ):
            render = partial(self._render, add_generation_prompt=add_generation_prompt)
            text = render(with_content_the_template_reads(checked, render))
            return list(self.inner(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        from .chat_template import plain_messages, render

        variables = {
            **self.inner.special_tokens_map,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self.inner.get_chat_template()
        return render(template, plain_messages(self.inner, messages), variables)

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

    # Broken files show as whatever the reader tripped over, up to a panic of the tokenizer library.
    with _refused(
        f"{path}: the tokenizer cannot be loaded", "replace its files, or pass token ids"
    ):
        if (path / "tokenizer.json").is_file():
            check_growth(path / "tokenizer.json")
        inner = AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
        put_stated_ends(inner, path / "tokenizer_config.json")
        _stop_dropout(inner, path)
        return TransformersTokenizer(inner)


_MOST_TIMES, _MOST_MORE = 1024, 4096
"""How many times longer the steps of a tokenizer may make a text, and by how many pieces more."""


def check_growth(file: Path) -> None:
    """Refuse a tokenizer.json whose steps make a short text as long as they like.

    A step may replace a letter by two; forty of them fill any memory, from inside the tokenizer
    library, where nothing stops it.

    Raises:
        InputError: one that does, or whose character map claims more than it holds.
    """
    content = json.loads(file.read_bytes())
    for section in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        times, more = 1.0, 0
        for step in _steps(content.get(section)):
            factor, added = _growth(step)
            times, more = times * max(factor, 1), more + added
        if times > _MOST_TIMES or more > _MOST_MORE:
            raise InputError(
                f"{file}: {section} can make a text {times:g} times longer and {more} pieces more; "
                f"at most {_MOST_TIMES} times and {_MOST_MORE} pieces are read here"
            )


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """The steps of a section, those of sequences one by one."""
    if isinstance(section, dict):
        inside = [value for value in section.values() if isinstance(value, list)]
        if section.get("type") == "Sequence" and inside:
            for each in chain(*inside):
                yield from _steps(each)
        else:
            yield section


def _growth(step: dict[str, Any]) -> tuple[float, int]:
    """How many times longer a step makes a text at most, and how many pieces it adds."""
    kind = step.get("type")
    if kind == "Replace":
        pattern = step["pattern"].get("String", "")  # a regular expression may match nothing
        return len(step["content"]) / len(pattern) if pattern else 1 + len(step["content"]), 0
    if kind == "ByteLevel":
        return 2, 0
    if kind == "Prepend":
        return 1, len(step["prepend"])
    if kind == "Precompiled":
        raw = b64decode(step["precompiled_charsmap"] or "")
        if raw and int.from_bytes(raw[:4], "little") > len(raw) - 4:
            raise InputError(
                f"tokenizer.json: a precompiled_charsmap of {len(raw)} bytes claims more than it holds"
            )
        return 8, 0
    if kind == "TemplateProcessing":
        tokens = {name: len(each["ids"]) for name, each in step["special_tokens"].items()}
        names = [each["SpecialToken"]["id"] for each in step["single"] if "SpecialToken" in each]
        return len(step["single"]) - len(names), sum(tokens.get(name, 0) for name in names)
    return 1, 1


def put_stated_ends(inner: Any, file: Path) -> None:
    """Put bos and eos around texts as tokenizer_config.json states, where its class does not.

    ``transformers`` 5 takes the post-processor of tokenizer.json and leaves the statements; the
    model was trained with them. A post-processor that says otherwise is told in a warning.

    Args:
        inner: a tokenizer of ``transformers``; its post-processor changes.
        file: tokenizer_config.json, which may be missing.

    Raises:
        InputError: a statement that is neither true nor false, or one that contradicts a
            post-processor which puts other tokens too.
    """
    if not file.is_file():
        return
    config = json.loads(file.read_text(encoding="utf-8"))
    front, back = _around(inner)
    ends = {"add_bos_token": inner.bos_token_id, "add_eos_token": inner.eos_token_id}
    found = {"add_bos_token": ends["add_bos_token"] in front,
             "add_eos_token": ends["add_eos_token"] in back}  # fmt: skip
    wanted = dict(found)
    for name, token_id in ends.items():
        stated = config.get(name)
        if not isinstance(stated, bool | None):
            raise InputError(f"{file}: {name} is {stated!r:.200}; it must be true or false")
        if token_id is not None and stated is not None:
            wanted[name] = stated
    if wanted == found:
        return
    told = f"{file} and the post-processor of tokenizer.json contradict each other: " + ", ".join(
        f"{name} is {str(stated).lower()}, the other says {str(found[name]).lower()}"
        for name, stated in wanted.items()
        if stated != found[name]
    )
    inner.add_bos_token, inner.add_eos_token = wanted["add_bos_token"], wanted["add_eos_token"]
    right = [[ends[name]] if put else [] for name, put in wanted.items()]
    if not {*front, *back} <= {*ends.values()} or [*_around(inner)] != right:
        others = inner.convert_ids_to_tokens([*front, *back])
        raise InputError(f"{told}; it puts {others} around texts: make the files agree")
    warn_caller(f"{told}; texts are read as tokenizer_config.json states")


def _stop_dropout(inner: Any, path: Path) -> None:
    """Take merges as they are, where tokenizer.json leaves some out by chance, as training does.

    A text would have other ids each time, and on each process of a job.
    """
    backend: Any = getattr(inner, "backend_tokenizer", None)
    model: Any = getattr(backend, "model", None)
    if dropout := getattr(model, "dropout", None):
        model.dropout = None
        warn_caller(
            f"{path / 'tokenizer.json'} states dropout {dropout:g}, which splits texts by chance and "
            "is meant for training; texts are split without it"
        )


def _around(inner: Any) -> tuple[list[int], list[int]]:
    """Ids that encoding puts in front of a text and behind it."""
    text = (
        "a"
        if _is_plain(inner, "a")
        else next((each for each in inner.get_vocab() if _is_plain(inner, each)), "a")
    )
    bare, framed = (inner.encode(text, add_special_tokens=each) for each in (False, True))
    for at in range(len(framed) - len(bare) + 1):
        if framed[at : at + len(bare)] == bare:
            return framed[:at], framed[at + len(bare) :]
    return [], []


def _is_plain(inner: Any, text: str) -> bool:
    """Whether a text has ids, and no special ones; some vocabularies read no "a"."""
    ids = inner.encode(text, add_special_tokens=False)
    return bool(ids) and not {*ids} & {*inner.all_special_ids}


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


def _tokens(inner: Any, unused: frozenset[int]) -> dict[int, str]:
    """What the vocabulary lists, added tokens included, by id."""
    found: dict[int, str] = {token_id: text for text, token_id in inner.get_vocab().items()}
    # By text it has one id for each, and some tokenizers spell several alike.
    for token_id in range(inner.vocab_size):
        if token_id not in found and (text := inner.convert_ids_to_tokens(token_id)) is not None:
            found[token_id] = text
    return {token_id: text for token_id, text in found.items() if token_id not in unused}


@contextmanager
def _refused(what: str, way_out: str) -> Iterator[None]:
    """Whatever is raised becomes an InputError, a panic of the tokenizer library too."""
    try:
        yield
    except ArchzooError:
        raise
    except BaseException as error:
        kind = type(error).__name__
        if not isinstance(error, Exception) and kind != "PanicException":
            raise
        said = str(error) if kind == "TemplateError" else f"{kind}: {error}"
        raise InputError(f"{what}: {said:.400}; {way_out}") from error


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
