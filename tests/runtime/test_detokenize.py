"""Detokenizer: deltas put together are the full decode, whatever the tokenizer and the ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
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


KINDS = {"byte": byte_level(), "sentencepiece": sentencepiece_like(), "words": word_pieces()}
kinds = pytest.mark.parametrize("kind", list(KINDS))


def deltas(tokenizer: TransformersTokenizer, ids: Sequence[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.push(each) for each in ids), stream.flush()]


@kinds
def test_nothing(kind: str) -> None:
    assert deltas(KINDS[kind], []) == [""]


@kinds
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_ids_give_the_full_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    size = len(tokenizer.inner)
    one = st.one_of(st.integers(0, size + 3), st.integers(max(0, size - 14), size - 1))
    ids = data.draw(st.lists(one, max_size=60))
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=80, deadline=None)
@given(
    raw=st.lists(
        st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xBD, 0xA0, 0x20, 0x68, 0xFF]), max_size=60
    )
)
def test_any_bytes_give_the_full_decode(raw: list[int]) -> None:
    spelled = {"byte": byte_alphabet(), "sentencepiece": [f"<0x{byte:02X}>" for byte in range(256)]}
    for kind, names in spelled.items():
        tokenizer = KINDS[kind]
        ids = [tokenizer.inner.convert_tokens_to_ids(names[byte]) for byte in raw]
        assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


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


def test_one_bad_byte_spoils_its_run_as_in_the_full_decode() -> None:
    tokenizer = KINDS["sentencepiece"]
    ids = tokenizer.inner.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "hi"])
    assert deltas(tokenizer, ids) == ["", "", "", "", "\ufffd\ufffd\ufffd\ufffdhi", ""]
    good = tokenizer.inner.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "</s>", "hi"])
    assert deltas(tokenizer, good) == ["", "", "", "", "你hi", ""]


@kinds
def test_the_work_for_a_token_does_not_grow(kind: str) -> None:
    tokenizer = KINDS[kind]
    longest = 0

    class Watched:
        def decode(self, ids: Sequence[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return tokenizer.decode(ids)

        def is_hidden(self, token_id: int) -> bool:
            return tokenizer.is_hidden(token_id)

        def is_byte_piece(self, token_id: int) -> bool:
            return tokenizer.is_byte_piece(token_id)

    bad = tokenizer.inner.convert_tokens_to_ids("\ufffd" if kind != "byte" else "ï¿½")
    eos = tokenizer.inner.eos_token_id
    ids = [0, bad] * 200 + [bad, eos] * 300 + [eos] * 300 + [0]
    if kind == "sentencepiece":
        ids = [each or bad for each in ids]
    stream = Detokenizer(Watched())
    text = "".join([*(stream.push(each) for each in ids), stream.flush()])
    assert text == tokenizer.decode(ids)
    assert longest <= 16
