"""Detokenizer: deltas put together are the full decode, whatever the tokenizer and the ids.

``whole`` states the definition of text apart from the code: the tokenizer's decoding, where each
byte piece that belongs to no character stands for U+FFFD.
"""

from __future__ import annotations

import codecs
import os.path
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from archzoo.runtime.detokenize import Detokenizer
from archzoo.runtime.tokenizer import TransformersTokenizer


def wrap(inner: Tokenizer) -> TransformersTokenizer:
    special = [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    inner.add_special_tokens(special)
    return TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    )


def byte_level() -> TransformersTokenizer:
    """Like GPT-2 and Llama 3: every byte is a piece, some pieces are words or half characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "i"), ("Ġ", "hi"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ġ", "ð"), ("ï", "¿"), ("ï¿", "½")]
    vocab = {piece: at for at, piece in enumerate([*letters, *(a + b for a, b in merges)])}
    inner = Tokenizer(models.BPE(vocab, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return wrap(inner)


def sentencepiece_like() -> TransformersTokenizer:
    """Like Llama 2: word pieces with a leading mark, bytes for the rest, first space dropped."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁hi",
        "hi",
        "你",
        "\ufffd",
        "▁▁",
    ]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    inner = Tokenizer(
        models.BPE(vocab, [("▁", "hi"), ("▁", "▁")], unk_token="<unk>", byte_fallback=True)
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrap(inner)


def word_pieces() -> TransformersTokenizer:
    """No decoder of its own: words joined by spaces."""
    inner = Tokenizer(models.WordLevel({"one": 0, "two": 1, "\ufffd": 2, "<unk>": 3}, "<unk>"))
    return wrap(inner)


def bert_like() -> TransformersTokenizer:
    """Words and their ends; punctuation without a space before it."""
    pieces = ["[UNK]", "do", "##ing", "n't", ".", "你", "##好", "\ufffd"]
    inner = Tokenizer(models.WordPiece({each: at for at, each in enumerate(pieces)}))
    inner.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return wrap(inner)


def unigram() -> TransformersTokenizer:
    """Like T5 and Gemma: scores, word marks, bytes for what is no piece."""
    pieces = ["<unk>", "▁", "▁hi", "hi", "▁▁", "你", "\ufffd"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.Unigram([(each, -1.0) for each in pieces], 0, byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return wrap(inner)


def word_ends() -> TransformersTokenizer:
    """Like GPT-1: a word's last piece is marked, the space comes with the next one."""
    inner = Tokenizer(
        models.BPE({"hi</w>": 0, "hi": 1, "there</w>": 2, "😀</w>": 3, "\ufffd": 4}, [])
    )
    inner.decoder = decoders.BPEDecoder()
    return wrap(inner)


def few_bytes() -> TransformersTokenizer:
    """A vocabulary with some byte pieces only, those of U+FFFD not among them."""
    pieces = ["<unk>", "▁hi", "hi", *(f"<0x{byte:02X}>" for byte in (0x0A, *"😀".encode()))]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    inner = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    inner.decoder = sentencepiece_like().inner.backend_tokenizer.decoder
    return wrap(inner)


def with_added(tokenizer: TransformersTokenizer) -> TransformersTokenizer:
    """With a token that was added and is text."""
    tokenizer.inner.add_tokens([AddedToken("<tool call>", special=False)])
    return TransformersTokenizer(tokenizer.inner)


KINDS = {
    "byte": with_added(byte_level()),
    "sentencepiece": with_added(sentencepiece_like()),
    "words": word_pieces(),
    "bert": with_added(bert_like()),
    "unigram": with_added(unigram()),
    "word-ends": word_ends(),
}
kinds = pytest.mark.parametrize("kind", list(KINDS))

codecs.register_error("one-each", lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore[attr-defined,arg-type]  # decoding only


def deltas(
    tokenizer: TransformersTokenizer, ids: Sequence[int], context: Sequence[int] = ()
) -> list[str]:
    stream = Detokenizer(tokenizer, context)
    return [*(stream.push(each) for each in ids), stream.flush()]


def whole(tokenizer: TransformersTokenizer, ids: Sequence[int]) -> str:
    """Text of ids: as decoded, each byte piece of no character as U+FFFD."""
    visible = [each for each in ids if tokenizer.hidden_text(each) is None]
    ids_of = {tokenizer.byte_of(each): each for each in range(len(tokenizer.inner))}
    sound: list[int] = []
    for is_byte, run in groupby(visible, lambda each: tokenizer.byte_of(each) is not None):
        if is_byte:
            raw = bytes(tokenizer.byte_of(each) or 0 for each in run)
            sound += [ids_of[byte] for byte in raw.decode("utf-8", "one-each").encode()]
        else:
            sound += run
    return tokenizer.decode(sound)


@kinds
def test_nothing(kind: str) -> None:
    assert deltas(KINDS[kind], []) == [""]


@kinds
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_ids_behind_any_prompt_give_the_full_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    size = len(tokenizer.inner)
    one = st.one_of(st.integers(0, size + 3), st.integers(max(0, size - 14), size - 1))
    ids = data.draw(st.lists(one, max_size=60))
    border = data.draw(st.integers(0, len(ids)))
    full, before = whole(tokenizer, ids), whole(tokenizer, ids[:border])
    shared = os.path.commonprefix([full, before])
    assert "".join(deltas(tokenizer, ids[border:], ids[:border])) == full[len(shared) :]


@example(raw=[0x80, 0xC2, 0x80], border=2)  # what the prompt shows of it is only partly what it is
@settings(max_examples=120, deadline=None)
@given(
    raw=st.lists(
        st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xBD, 0xA0, 0x20, 0x68, 0xFF, 0x0A]),
        max_size=60,
    ),
    border=st.integers(0, 60),
)
def test_any_bytes_give_the_full_decode(raw: list[int], border: int) -> None:
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    spelled = {"byte": byte_alphabet(), "sentencepiece": byte_pieces, "unigram": byte_pieces}
    for kind, names in spelled.items():
        tokenizer = KINDS[kind]
        ids = [tokenizer.inner.convert_tokens_to_ids(names[byte]) for byte in raw]
        full, before = whole(tokenizer, ids), whole(tokenizer, ids[:border])
        shared = os.path.commonprefix([full, before])
        assert "".join(deltas(tokenizer, ids[border:], ids[:border])) == full[len(shared) :]
        if kind == "byte" or is_text(raw):
            assert full == tokenizer.decode(ids)


def is_text(raw: list[int]) -> bool:
    try:
        return bool(bytes(raw).decode()) or True
    except UnicodeDecodeError:
        return False


@settings(max_examples=60, deadline=None)
@given(text=st.text("hi 你😀\n~é", max_size=40), ends=st.lists(st.integers(1, 6), max_size=12))
def test_going_on_from_what_came_so_far_does_not_drift(text: str, ends: list[int]) -> None:
    for kind in ("byte", "sentencepiece", "unigram"):
        tokenizer = KINDS[kind]
        ids = tokenizer.encode(text)
        at, said = 0, ""
        for length in [*ends, len(ids)]:
            said += "".join(deltas(tokenizer, ids[at : at + length], ids[:at])).rstrip("\ufffd")
            at += length
        assert said == tokenizer.decode(ids)


def byte_alphabet() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the rest from 256 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in own else next(rest)) for byte in range(256)]


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = KINDS["byte"]
    assert "".join(deltas(tokenizer, tokenizer.encode(text))) == text


def test_an_emoji_over_several_tokens_comes_when_it_is_whole() -> None:
    tokenizer = KINDS["byte"]
    ids = tokenizer.encode("hi 😀!")
    pieces = deltas(tokenizer, ids)
    assert "".join(pieces) == "hi 😀!"
    assert not any("\ufffd" in piece for piece in pieces)
    assert any("😀" in piece for piece in pieces)
    assert "" in pieces[:-1], "the open character is held back"


def test_words_come_at_once() -> None:
    assert deltas(KINDS["byte"], KINDS["byte"].encode("hi hi")) == ["hi", " hi", ""]
    tokenizer = KINDS["sentencepiece"]
    ids = tokenizer.inner.convert_tokens_to_ids(["▁hi", "▁hi", "hi"])
    assert deltas(tokenizer, ids) == ["hi", " hi", "hi", ""]


def test_half_a_character_at_the_end_is_flushed() -> None:
    tokenizer = KINDS["byte"]
    ids = tokenizer.encode("a😀")[:-1]
    assert deltas(tokenizer, ids)[-1] == "\ufffd"


def test_a_malformed_byte_takes_nothing_back() -> None:
    tokenizer = KINDS["sentencepiece"]
    ids = tokenizer.inner.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "hi"])
    assert deltas(tokenizer, ids) == ["", "", "你", "", "\ufffdhi", ""]
    assert tokenizer.decode(ids) == "\ufffd\ufffd\ufffd\ufffdhi", (
        "which the library would take back"
    )
    good = tokenizer.inner.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "</s>", "<0xA0>", "hi"])
    assert deltas(tokenizer, good) == ["", "", "", "你", "hi", ""]


def test_newlines_of_byte_pieces_come_at_once() -> None:
    for tokenizer in (KINDS["sentencepiece"], KINDS["unigram"], few_bytes()):
        newline = tokenizer.inner.convert_tokens_to_ids("<0x0A>")
        smile = tokenizer.inner.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "😀".encode()])
        ids = [newline, newline, *smile, *smile[:2], newline]
        shown = ["\n", "\n", "", "", "", "😀", "", "", "\ufffd\ufffd\n", ""]
        assert deltas(tokenizer, ids) == shown


def test_the_first_space_behind_a_prompt_is_kept() -> None:
    for kind in ("sentencepiece", "unigram"):
        tokenizer = KINDS[kind]
        begin, hi = tokenizer.inner.convert_tokens_to_ids(["<s>", "▁hi"])
        assert deltas(tokenizer, [hi], [begin, hi]) == [" hi", ""]
        assert deltas(tokenizer, [hi], [begin]) == ["hi", ""], "nothing visible is before it"
        assert deltas(tokenizer, [hi], [hi, *[begin] * 40]) == [" hi", ""]


def test_a_character_between_prompt_and_output_is_the_outputs() -> None:
    spelled = {"byte": byte_alphabet(), "sentencepiece": [f"<0x{byte:02X}>" for byte in range(256)]}
    for kind, names in spelled.items():
        tokenizer = KINDS[kind]
        smile = [tokenizer.inner.convert_tokens_to_ids(names[byte]) for byte in "😀".encode()]
        assert deltas(tokenizer, smile[2:], smile[:2]) == ["", "😀", ""]
        assert deltas(tokenizer, [], smile[:2]) == [""], "the prompt's decoding showed it"


def test_why_the_librarys_stream_is_not_used() -> None:
    """If one of these fails, tokenizers' DecodeStream has learned it: then use it."""
    tokenizer = KINDS["sentencepiece"]
    backend, lookup = tokenizer.inner.backend_tokenizer, tokenizer.inner.convert_tokens_to_ids
    newline, lead, hi = lookup(["<0x0A>", "<0xE4>", "hi"])
    stream = decoders.DecodeStream(ids=[hi, lead], skip_special_tokens=True)
    assert stream.step(backend, hi) == "hi\ufffdhi", (
        "a prompt's open character gives the prompt out"
    )
    stream = decoders.DecodeStream(skip_special_tokens=True)
    assert [stream.step(backend, each) for each in (newline, lead)] == ["\n", None]
    with pytest.raises(Exception, match="Invalid prefix"):
        stream.step(backend, hi)
    stream = decoders.DecodeStream(skip_special_tokens=True)
    bad = lookup("\ufffd")
    assert not any(stream.step(backend, bad) for _ in range(50)), (
        "held, and decoded again each time"
    )


@kinds
def test_the_work_for_a_token_does_not_grow(kind: str) -> None:
    tokenizer = KINDS[kind]
    longest = 0

    class Watched:
        def decode(self, ids: Sequence[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return tokenizer.decode(ids)

        def hidden_text(self, token_id: int) -> str | None:
            return tokenizer.hidden_text(token_id)

        def byte_of(self, token_id: int) -> int | None:
            return tokenizer.byte_of(token_id)

        replacement = tokenizer.replacement

    bad = tokenizer.inner.convert_tokens_to_ids("\ufffd" if kind != "byte" else "ï¿½")
    eos = tokenizer.inner.eos_token_id
    ids = [0, bad] * 200 + [bad, eos] * 300 + [eos] * 300 + [0]
    if kind in ("sentencepiece", "unigram"):
        smile = tokenizer.inner.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "😀".encode()])
        ids = [each or bad for each in ids] + smile * 50 + smile[:1] * 50
    stream = Detokenizer(Watched(), ids)
    text = "".join([*(stream.push(each) for each in ids), stream.flush()])
    assert text == whole(tokenizer, ids + ids).removeprefix(whole(tokenizer, ids))
    assert longest <= 16 * 4, "16 units of at most 4 byte pieces"
