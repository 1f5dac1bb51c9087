"""The tokenizer a GGUF file describes, built from its parsed metadata.

A GGUF file has no ``tokenizer.json``: it lists tokens, merges or scores, token types, and names
its model (``gpt2`` byte-level BPE, ``llama`` SentencePiece BPE) and the way text is split before
merging (``tokenizer.ggml.pre``). An unknown or missing one is refused when text is encoded: the
nearest guess would encode most text right and some text wrong. Ids become text all the same.

Source:
    llama.cpp, llama-vocab.cpp (names, defaults, ends of turns); the models' tokenizer.json files
    (split patterns).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ..errors import CheckpointFileError, InputError
from ..weights.gguf_file import GGUFFile
from .gguf_splits import SPLITS, VOCABULARIES, Split
from .tokenizer import TransformersTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "▁"
_LONGEST_PIECE = 512
"""Characters; SentencePiece makes none of over 512 bytes."""

GGUF_MODELS = ("gpt2", "llama")
"""Values of ``tokenizer.ggml.model`` that are served."""

_SENTENCEPIECE = {
    "unknown": (0, _UNKNOWN, "<unk>"),
    "bos": (1, _CONTROL, "<s>"),
    "eos": (2, _CONTROL, "</s>"),
}
"""Special token -> the id that a SentencePiece vocabulary means where it states none, and the type
or the text by which it is one there."""

_ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "<eos>"),
    *("<|tool_response>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<end_of_utterance>"),
    "<｜end▁of▁sentence｜>",
)
"""Texts of tokens that end a turn whatever the file says. llama.cpp also stops at tokens for a next
file in code, and at ``</s>``, which is HTML in some vocabularies."""


class GGUFTokenizer(TransformersTokenizer):
    """The tokenizer of a GGUF file; text is refused where nobody knows how the model splits it.

    Ids become text all the same, so such a file answers prompts of token ids.

    Args:
        file: the parsed header.

    Raises:
        InputError: the file describes no tokenizer.
        CheckpointFileError: what it describes is not known here or contradicts itself.
    """

    def __init__(self, file: GGUFFile) -> None:
        """Build the tokenizer, the way text is split aside."""
        vocabulary = _Vocabulary(file)
        self._refusal: CheckpointFileError | None = None
        try:
            split = vocabulary.split()
        except CheckpointFileError as error:
            split, self._refusal = Split(()), error
        super().__init__(_transformers(vocabulary, split), gguf_unused_token_ids(file))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            CheckpointFileError: how text is split is not known.
            InputError: not a text.
        """
        self._require_split()
        return super().encode(text, add_special_tokens)

    def apply_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation.

        Raises:
            CheckpointFileError: how text is split is not known.
            InputError: no template, or a conversation the template refuses.
        """
        self._require_split()
        return super().apply_chat(messages, add_generation_prompt)

    def _require_split(self) -> None:
        if self._refusal is not None:
            raise CheckpointFileError(*self._refusal.args)


def tokenizer_from_gguf(file: GGUFFile) -> PreTrainedTokenizerFast:
    """The transformers tokenizer that a GGUF file describes, chat template included.

    Raises:
        InputError: the file describes no tokenizer.
        CheckpointFileError: what it describes is not known here or contradicts itself.
    """
    vocabulary = _Vocabulary(file)
    return _transformers(vocabulary, vocabulary.split())


def backend_from_gguf(file: GGUFFile) -> Tokenizer:
    """The same tokenizer without transformers (which takes seconds to import): ids and text only.

    Raises:
        InputError: the file describes no tokenizer.
        CheckpointFileError: what it describes is not known here or contradicts itself.
    """
    vocabulary = _Vocabulary(file)
    return _backend(vocabulary, vocabulary.split())


def gguf_eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Ids that end a generation: end of text, of turn, of message, as stated or by their text."""
    return _Vocabulary(file).end_ids


def gguf_unused_token_ids(file: GGUFFile) -> frozenset[int]:
    """Ids that are listed to fill up the head: of type unused, or spelled ``[PAD7]`` at id 7."""
    vocabulary = _Vocabulary(file)
    entries = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    return frozenset(at for at, (text, kind) in entries if kind == _UNUSED or text == f"[PAD{at}]")


class _Vocabulary:
    """The tokenizer's part of the metadata, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        model = file.get("tokenizer.ggml.model", str)
        if model is None or "tokenizer.ggml.tokens" not in file.metadata:
            raise InputError(
                f"{file.path} describes no tokenizer (tokenizer.ggml.* is missing); pass token ids"
            )
        if model not in GGUF_MODELS:
            raise file.broken(
                f"tokenizer.ggml.model is {model!r}; known are gpt2 (byte-level BPE) and llama "
                "(SentencePiece BPE); pass token ids instead of text"
            )
        self.byte_level = model == "gpt2"
        self.tokens = self._column("tokens", str)
        types = self._column("token_type", int, len(self.tokens))
        self.types = list(types) or [_NORMAL] * len(self.tokens)
        self.ids = {text: index for index, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            text, count = Counter(self.tokens).most_common(1)[0]
            raise file.broken(f"lists token {text!r} {count} times in its vocabulary")
        for index in self.end_ids:  # whatever type a converter gave them
            self.types[index] = _CONTROL

    def _column(self, key: str, kind: type[T], length: int | None = None) -> list[T]:
        """An array of the metadata, empty where it is missing."""
        key = f"tokenizer.ggml.{key}"
        values = self.file.get(key, list) or []
        if wrong := [value for value in values if type(value) is not kind]:
            raise self.file.broken(f"{key} holds {wrong[0]!r}, expected {kind.__name__} values")
        if values and length is not None and len(values) != length:
            raise self.file.broken(f"{key} has {len(values)} values for {length} tokens")
        return values

    def split(self) -> Split:
        """How text is split before merging; SentencePiece does not split it.

        Raises:
            CheckpointFileError: the file does not say, or names a way that is not known.
        """
        if not self.byte_level:
            return Split(())
        key = "tokenizer.ggml.pre"
        name = self.file.get(key, str) or ""
        if name in ("", "default"):  # what a converter wrote that did not know
            name = next(filter(self._is_vocabulary_of, VOCABULARIES), name)
        if not name:
            raise self.file.broken(
                f"has no {key}, as files of before May 2024, and without it nobody knows how text "
                "is split before merging; copy the file with it (gguf-new-metadata --pre-tokenizer "
                "NAME IN OUT, with llama-bpe for Llama 3, qwen2 for Qwen), or pass token ids "
                "instead of text"
            )
        if name not in SPLITS:
            raise self.file.broken(
                f"{key} is {name!r}, a way to split text that is not known here; known are "
                f"{', '.join(SPLITS)}; pass token ids instead of text"
            )
        if name == "default":
            warnings.warn(
                f"{self.file.path}: {key} is 'default': text is split as llama.cpp does where a "
                "converter did not know the model's own way, so tokens may not be the model's",
                stacklevel=2,
            )
        return SPLITS[name]

    def _is_vocabulary_of(self, name: str) -> bool:
        known, tokens = VOCABULARIES[name], self.tokens
        return all(at < len(tokens) and tokens[at] == text for at, text in known.items())

    def of_type(self, kind: int) -> list[str]:
        """Tokens of one type, in order."""
        return [text for text, type_ in zip(self.tokens, self.types, strict=True) if type_ == kind]

    def special_id(self, name: str) -> int | None:
        """Id of a named special token, None where the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        index = self.file.get(key, int)
        if index is None:
            return self._implied_id(name)
        if not 0 <= index < len(self.tokens):
            raise self.file.broken(
                f"{key} is {index}, the vocabulary has {len(self.tokens)} tokens"
            )
        return index

    def _implied_id(self, name: str) -> int | None:
        """Id that a SentencePiece vocabulary gives a special token by custom, if it is one there."""
        if self.byte_level or name not in _SENTENCEPIECE:
            return None
        index, kind, text = _SENTENCEPIECE[name]
        there = index < len(self.tokens)
        return (
            index if there and (self.types[index] == kind or self.tokens[index] == text) else None
        )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a generation, stated ones first."""
        stated = [self.special_id(name) for name in ("eos", "eot", "eom")]
        known = [index for text in _ENDS if (index := self.ids.get(text)) is not None]
        if {"<|return|>", "<|call|>"} <= self.ids.keys() or {
            "<|calls|>",
            "<|flush|>",
        } <= self.ids.keys():
            known = [index for index in known if self.tokens[index] != "<|end|>"]  # of a message
        return tuple(dict.fromkeys(index for index in (*stated, *known) if index is not None))

    def special(self, name: str) -> str | None:
        """Text of a named special token."""
        index = self.special_id(name)
        return None if index is None else self.tokens[index]

    def framing(self, split: Split) -> tuple[bool, bool]:
        """Whether encoding adds bos in front and eos behind."""
        implied = self.special("bos") is not None and (not self.byte_level or split.add_bos)
        stated = self.file.get("tokenizer.ggml.add_bos_token", bool)
        add_bos = implied if stated is None else stated
        add_eos = self.file.get("tokenizer.ggml.add_eos_token", bool) or False
        for wanted, name in ((add_bos, "bos"), (add_eos, "eos")):
            if wanted and self.special(name) is None:
                raise self.file.broken(f"asks for {name} on every text and names no {name} token")
        return add_bos, add_eos

    def merges(self) -> list[tuple[str, str]]:
        """Pairs to merge, first ones first: as listed, or as the scores imply."""
        listed = self._column("merges", str)
        if not listed and not self.byte_level:
            return self._scored_merges()
        if "tokenizer.ggml.merges" not in self.file.metadata:
            raise self.file.broken("has no tokenizer.ggml.merges; convert the model again")
        pairs: list[tuple[str, str]] = []
        for text in listed:
            left, _, right = text.partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise self.file.broken(f"merge {text!r} does not join two tokens into a third")
            pairs.append((left, right))
        return pairs

    def _scored_merges(self) -> list[tuple[str, str]]:
        """Every way to put an ordinary token together from two others, best score first."""
        scores = self._column("scores", float, len(self.tokens))
        if not scores:
            raise self.file.broken("has neither tokenizer.ggml.merges nor tokenizer.ggml.scores")
        apart = {_UNKNOWN, _CONTROL, _BYTE}
        ids = {text: index for text, index in self.ids.items() if self.types[index] not in apart}
        if long := next((text for text in ids if len(text) > _LONGEST_PIECE), None):
            raise self.file.broken(
                f"has a token of {len(long)} characters, a SentencePiece vocabulary has none of over "
                f"{_LONGEST_PIECE}"
            )
        ranked = [
            (-scores[index], index, ids[text[:cut]], ids[text[cut:]])
            for text, index in ids.items()
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]
        return [(self.tokens[left], self.tokens[right]) for _, _, left, right in sorted(ranked)]


def _transformers(vocabulary: _Vocabulary, split: Split) -> PreTrainedTokenizerFast:
    """The pipeline in the class of ``transformers``."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(vocabulary, split),
        bos_token=vocabulary.special("bos"),
        eos_token=vocabulary.special("eos"),
        unk_token=vocabulary.special("unknown"),
        pad_token=vocabulary.special("padding"),
        chat_template=vocabulary.file.get("tokenizer.chat_template", str),
        clean_up_tokenization_spaces=False,
    )


def _backend(vocabulary: _Vocabulary, split: Split) -> Tokenizer:
    """The whole pipeline: model, special tokens, what is added around a text."""
    if vocabulary.byte_level:
        backend = _byte_level(vocabulary, split)
    else:
        backend = _sentencepiece(vocabulary)
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        tokens = [
            AddedToken(text, normalized=False, special=special) for text in vocabulary.of_type(kind)
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)
    add_bos, add_eos = vocabulary.framing(split)
    if add_bos or add_eos:
        backend.post_processor = _frame(vocabulary, add_bos, add_eos)
    return backend


def _byte_level(vocabulary: _Vocabulary, split: Split) -> Tokenizer:
    """Bytes spelled as letters, split, merged."""
    backend = Tokenizer(
        models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=split.whole_words)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), behavior="isolated") for each in split.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """As transformers' LlamaTokenizer: a text that starts with a space gets no second one."""
    prefix = vocabulary.file.get("tokenizer.ggml.add_space_prefix", bool) is not False
    backend = Tokenizer(
        models.BPE(
            vocabulary.ids,
            vocabulary.merges(),
            unk_token=vocabulary.special("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _frame(vocabulary: _Vocabulary, add_bos: bool, add_eos: bool) -> processors.PostProcessor:
    """Bos in front of every text and eos behind it, as asked."""
    # By names of their own: in a template, spaces, colons and dollars of a text would be its grammar.
    front, back = ["bos"] * add_bos, ["eos"] * add_eos
    texts = [(name, vocabulary.special(name) or "") for name in (*front, *back)]
    return processors.TemplateProcessing(
        single=[*front, "$A", *back],
        pair=[*front, "$A", *back, *front, "$B:1", *back],
        special_tokens=[
            {"id": name, "ids": [vocabulary.ids[text]], "tokens": [text]} for name, text in texts
        ],
    )
