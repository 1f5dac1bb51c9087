"""The tokenizer a GGUF file describes, built from its parsed metadata.

A GGUF file has no ``tokenizer.json``: it lists tokens, merges or scores, token types, and names
its model (``gpt2`` byte-level BPE, ``llama`` SentencePiece BPE) and the way text is split before
merging (``tokenizer.ggml.pre``). An unknown one is refused: the nearest guess would encode most
text right and some text wrong.

Source:
    llama.cpp, llama-vocab.cpp (names, defaults); the models' tokenizer.json files (split patterns).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

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

from ..errors import InputError
from ..weights.gguf_file import GGUFFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_SPACE = "▁"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Split:
    """How a byte-level vocabulary splits text before merging.

    Args:
        pattern: pieces; empty for GPT-2's own pattern.
        digits: every digit is a piece of its own, split off first.
        whole_words: a piece that is a token is taken whole, merges or not.
        add_bos: what a file without the flag means.
        nfc: text is composed (NFC) first.
    """

    pattern: str = ""
    digits: bool = False
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_GPT2_SPLIT, _DIGITS_SPLIT = _Split(), _Split(digits=True)
_LLAMA3_SPLIT = _Split(_LLAMA3, whole_words=True, add_bos=True)
_SPLITS = {
    "default": _GPT2_SPLIT,
    "gpt-2": _GPT2_SPLIT,
    "smollm": _DIGITS_SPLIT,
    "starcoder": _DIGITS_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "tekken": _Split(_TEKKEN, whole_words=True, add_bos=True),
    "qwen2": _Split(_QWEN2, nfc=True),
}


def tokenizer_from_gguf(file: GGUFFile) -> PreTrainedTokenizerFast:
    """The transformers tokenizer that a GGUF file describes, chat template included.

    Raises:
        InputError: the file describes no tokenizer.
        CheckpointFileError: what it describes is not known here or contradicts itself.
    """
    from transformers import PreTrainedTokenizerFast

    vocabulary = _Vocabulary(file)
    add_bos, add_eos = vocabulary.framing()
    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(vocabulary),
        bos_token=vocabulary.special("bos"),
        eos_token=vocabulary.special("eos"),
        unk_token=vocabulary.special("unknown"),
        pad_token=vocabulary.special("padding"),
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        chat_template=file.get("tokenizer.chat_template", str),
        clean_up_tokenization_spaces=False,
    )


def backend_from_gguf(file: GGUFFile) -> Tokenizer:
    """The same tokenizer without transformers (which takes seconds to import): ids and text only.

    Raises:
        InputError: the file describes no tokenizer.
        CheckpointFileError: what it describes is not known here or contradicts itself.
    """
    return _backend(_Vocabulary(file))


def gguf_eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Ids that end a generation: end of text, of turn, of message; without repeats."""
    vocabulary = _Vocabulary(file)
    ids = [vocabulary.special_id(name) for name in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(index for index in ids if index is not None))


def gguf_unused_token_ids(file: GGUFFile) -> frozenset[int]:
    """Ids that are listed to fill up the head: of type unused, or spelled ``[PAD7]`` at id 7."""
    vocabulary = _Vocabulary(file)
    types = vocabulary.types or [1] * len(vocabulary.tokens)
    entries = enumerate(zip(vocabulary.tokens, types, strict=True))
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
        if model not in ("gpt2", "llama"):
            raise file.broken(
                f"tokenizer.ggml.model is {model!r}; known are gpt2 (byte-level BPE) and llama "
                "(SentencePiece BPE); pass token ids instead of text"
            )
        self.byte_level = model == "gpt2"
        self.tokens = self._column("tokens", str)
        self.types = self._column("token_type", int, len(self.tokens))
        self.ids = {text: index for index, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            text, count = Counter(self.tokens).most_common(1)[0]
            raise file.broken(f"lists token {text!r} {count} times in its vocabulary")

    def _column(self, key: str, kind: type[T], length: int | None = None) -> list[T]:
        """An array of the metadata, empty where it is missing."""
        key = f"tokenizer.ggml.{key}"
        values = self.file.get(key, list) or []
        if wrong := next((value for value in values if type(value) is not kind), None):
            raise self.file.broken(f"{key} holds {wrong!r}, expected {kind.__name__} values")
        if values and length is not None and len(values) != length:
            raise self.file.broken(f"{key} has {len(values)} values for {length} tokens")
        return values

    @property
    def split(self) -> _Split:
        """How text is split before merging; a file that does not say means GPT-2's way."""
        name = self.file.get("tokenizer.ggml.pre", str) or "default"
        if name not in _SPLITS:
            raise self.file.broken(
                f"tokenizer.ggml.pre is {name!r}; known are {', '.join(_SPLITS)}; "
                "pass token ids instead of text"
            )
        return _SPLITS[name]

    def of_type(self, kind: int) -> list[str]:
        """Tokens of one type, in order."""
        return [text for text, type_ in zip(self.tokens, self.types, strict=False) if type_ == kind]

    def special_id(self, name: str) -> int | None:
        """Id of a named special token, None where the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        index = self.file.get(key, int)
        if index is not None and not 0 <= index < len(self.tokens):
            raise self.file.broken(
                f"{key} is {index}, the vocabulary has {len(self.tokens)} tokens"
            )
        return index

    def special(self, name: str) -> str | None:
        """Text of a named special token."""
        index = self.special_id(name)
        return None if index is None else self.tokens[index]

    def framing(self) -> tuple[bool, bool]:
        """Whether encoding adds bos in front and eos behind."""
        implied = self.special("bos") is not None and (not self.byte_level or self.split.add_bos)
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
        if not listed:
            return self._scored_merges()
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
        types = self.types or [1] * len(self.tokens)
        ids = {text: index for text, index in self.ids.items() if types[index] not in apart}
        ranked = [
            (-scores[index], index, ids[text[:cut]], ids[text[cut:]])
            for text, index in ids.items()
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]
        return [(self.tokens[left], self.tokens[right]) for _, _, left, right in sorted(ranked)]


def _backend(vocabulary: _Vocabulary) -> Tokenizer:
    """The whole pipeline: model, special tokens, what is added around a text."""
    backend = (_byte_level if vocabulary.byte_level else _sentencepiece)(vocabulary)
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        tokens = [
            AddedToken(text, normalized=False, special=special) for text in vocabulary.of_type(kind)
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)
    add_bos, add_eos = vocabulary.framing()
    if add_bos or add_eos:
        backend.post_processor = _frame(vocabulary, add_bos, add_eos)
    return backend


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    """Bytes spelled as letters, split as the file says, merged."""
    split = vocabulary.split
    backend = Tokenizer(
        models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=split.whole_words)
    )
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.pattern))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
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
    front = [vocabulary.special("bos")] if add_bos else []
    back = [vocabulary.special("eos")] if add_eos else []
    names = [text for text in (*front, *back) if text is not None]
    return processors.TemplateProcessing(
        single=[*front, "$A", *back],
        pair=[*front, "$A", *back, *front, "$B:1", *back],
        special_tokens=[(text, vocabulary.ids[text]) for text in dict.fromkeys(names)],
    )
