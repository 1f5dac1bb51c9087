from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from archzoo.errors import CheckpointFileError, InputError
from archzoo.runtime.gguf_splits import SPLITS, VOCABULARIES
from archzoo.runtime.gguf_tokenizer import (
    GGUFTokenizer,
    backend_from_gguf,
    gguf_eos_token_ids,
    gguf_unused_token_ids,
    tokenizer_from_gguf,
)
from archzoo.runtime.tokenizer import TransformersTokenizer
from archzoo.weights.gguf_file import GGUFFile
from tiny import gguf_of

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<｜full▁width｜>"]
USER = ["<think>", "    "]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROSE = [
    "The quick brown fox jumps over the lazy dog, and the dog didn't care: it's 12,345 years old.",
    "def f(x):\n    return x + 1\n\n\nclass A:\n    pass  # it'll do, we've they're I'm\n\n\n\n1. one",
    "naïve café “quotes” … über 你好世界 привет мир مرحبا 🤖 the the the there then",
]
CORPUS = [
    "",
    "a",
    " ",
    "  the  quick   fox",
    *PROSE,
    "a  1",
    "list:\n\n1. first\n\n22. second",
    "\t\t9\r\n\r\n",
    "e\u0301 or é, \ufeffbom \u200bzero \x00\x01",
    "👨‍👩‍👧 𝔘𝔫𝔦 ¹²³½ ١٢٣",
    "<|im_start|>user\nhi<|im_end|>\n<think>no</think>",
    "x<|endoftext|>y <|im_start <｜full▁width｜>",
    "z" * 200,
]


def split_of(digits: bool, pattern: str) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern))
    return pre_tokenizers.Sequence(steps)


@cache
def trained(digits: bool = False, pattern: str = "") -> tuple[Tokenizer, list[str], list[str]]:
    """A byte-level BPE trained here: the judge, its vocabulary and its merges as GGUF has them."""
    judge = Tokenizer(models.BPE())
    judge.pre_tokenizer = split_of(digits, pattern)
    judge.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    judge.train_from_iterator(PROSE * 3, trainer)
    judge.add_tokens(USER)
    vocabulary = judge.get_vocab()
    merges = [" ".join(pair) for pair in json.loads(judge.to_str())["model"]["merges"]]
    return judge, sorted(vocabulary, key=vocabulary.__getitem__), merges


def write(path: Path, **fields: object) -> GGUFFile:
    """A GGUF file with tokenizer.ggml.* fields; a None leaves a field out."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in fields.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def byte_level(pre: str | None = "smollm", digits: bool = True, pattern: str = "") -> dict:
    _, tokens, merges = trained(digits, pattern)
    types = [3 if t in SPECIALS else 4 if t in USER else 1 for t in tokens]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
        "chat_template": TEMPLATE,
    }


def sentencepiece(**more: object) -> dict:
    words = ["the", "quick", "fox", "dog", "return", "def", "café", "hello", "it"]
    pieces = {"▁"} | set("".join(PROSE).replace(" ", "▁"))
    for word in words:
        for start in ("", "▁"):
            pieces |= {(start + word)[:cut] for cut in range(1, len(word) + 2)}
    ordinary = sorted(pieces, key=lambda piece: (-len(piece), piece))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ordinary]
    types = [2, 3, 3, *[6] * 256, *[1] * len(ordinary)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(ordinary))]
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **more,
    }


def ids(tokenizer: object, text: str) -> list[int]:
    return tokenizer(text).input_ids  # type: ignore[operator, no-any-return]  # any tokenizer


# --- byte-level BPE ----------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "digits", "pattern"),
    [
        ("smollm", True, ""),
        ("starcoder", True, ""),
        ("gpt-2", False, ""),
        ("llama-bpe", False, LLAMA3),
        ("smaug-bpe", False, LLAMA3),
        ("qwen2", False, QWEN2),
        ("deepseek-r1-qwen", False, QWEN2),
        ("tekken", False, TEKKEN),
    ],
)
def test_ids_equal_the_tokenizer_that_made_the_vocabulary(
    tmp_path: Path, pre: str | None, digits: bool, pattern: str
) -> None:
    judge, *_ = trained(digits, pattern)
    file = write(tmp_path / "a.gguf", **byte_level(pre, digits, pattern))
    ours, full = backend_from_gguf(file), tokenizer_from_gguf(file)
    for text in CORPUS:
        if pattern == QWEN2 and "\u0301" in text:
            continue
        expected = judge.encode(text).ids
        assert ours.encode(text).ids == ids(full, text) == expected, text
        assert full.decode(expected) == text
        assert ours.decode(expected, skip_special_tokens=False) == text


def test_qwen2_composes_text_first(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", **byte_level("qwen2", False, QWEN2))
    ours = backend_from_gguf(file)
    assert ours.encode("cafe\u0301").ids == ours.encode("café").ids


def test_a_split_that_takes_whole_words_needs_no_merge(tmp_path: Path) -> None:
    fields = byte_level("llama-bpe", False, LLAMA3)
    fields["tokens"] = [*fields["tokens"], "zzzz"]
    fields["token_type"] = [*fields["token_type"], 1]
    ours = backend_from_gguf(write(tmp_path / "a.gguf", **fields))
    assert ours.encode("zzzz").tokens == ["zzzz"]


def test_digits_stand_alone_after_spaces_where_the_file_says_smollm(tmp_path: Path) -> None:
    """The split is the file's, not GPT-2's, which would tear the two line ends apart."""
    ours = backend_from_gguf(write(tmp_path / "a.gguf", **byte_level()))
    assert ours.encode("\n\n1").tokens == ["ĊĊ", "1"]


PIECES = {
    "It|'s| 1234567| fooBar| Türk|'t|e|!|\n|\n|x| 你好ア| नमस|्|त|े!|      | $|a|/|b|.|\r\n": (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
        "modern-bert jina-es jina-de jina-v2-es jina-v2-de"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'t|e|!|\n|\n|x| 你好ア| नमस|्|त|े!|      | $|a|/|b|.|\r\n": (
        "smollm starcoder refact codeshell exaone minerva-7b mellum2 command-r"
    ),
    "It|'s| |123|456|7| fooBar| Türk|'t|e|!\n\n|x| 你好ア| नमस|्त|े!|      | $|a|/b|.\r\n": (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano "
        "smaug-bpe dbrx chatglm-bpe glm4 minicpm5"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'t|e|!\n\n|x| 你好ア| नमस|्त|े!|      | $|a|/b|.\r\n": (
        "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 kormo f2llmv2 "
        "bailingmoe bailingmoe2 llada-moe"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'t|e|!\n\n|x| 你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "qwen35"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'te|!\n\n|x| 你好ア| नमस|्त|े!|      | $|a|/b|.\r\n": (
        "ufakzeka"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'t|e|!|\n\n|x| 你好ア| नमस|्त|े!|      | $|a|/b|.\r|\n": (
        "laguna"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'t|e|!|\n\n|x| 你好ア| नमस|्त|े!|      | $|a|/b|.|\r\n": (
        "seed-coder"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar Türk|'t|e|!\n|\n|x 你好ア नमस्ते|!|      | $|a|/b|.\r|\n": (
        "exaone-moe"
    ),
    "It|'s| |123|456|7| fooBar| Türk|'t|e|!\n\n|x| 你好ア| नमस|्त|े!|    |  | $|a|/b|.\r\n": (
        "jais-2"
    ),
    "It|'s| |1|2|3|4|5|6|7| foo|Bar| Türk|'te|!\n\n|x| 你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "tekken"
    ),
    "It's| |123|456|7| foo|Bar| Türk't|e|!\n\n|x| 你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m"
    ),
    "It's| |1|234|567| foo|Bar| Türk't|e|!\n\n|x| 你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "tiny_aya cohere2moe"
    ),
    "It's| |123|456|7| foo|Bar| Türk't|e|!\n\n|x| |你好|ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "kimi-k2"
    ),
    "It's| |1|2|3|4|5|6|7| foo|Bar| Türk't|e|!\n\n|x| |你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "youtu"
    ),
    "It|'|s| |1234567| fooBar| T|ü|rk|'|te|!|\n|\n|x| |你好ア| |नमस्ते|!|      | $|a|/|b|.|\r|\n": (
        "deepseek-llm"
    ),
    "It|'|s| |1|2|3|4|5|6|7| fooBar| Türk|'|te|!|\n|\n|x| |你好ア| |नमस|्|त|े|!|       $|a|/|b|.|\r|\n": (
        "deepseek-coder"
    ),
    "It|'s| |123|456|7| fooBar| Türk|'te|!\n\n|x| |你好ア| नमस्ते|!|      | $|a|/b|.\r\n": (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4"
    ),
    "It|'s| |1|2|3|4|5|6|7| fooBar| Türk|'te|!|\n|\n|x| |你好ア| नमस्ते|!|      | $|a|/b|.|\r|\n": (
        "spark2_5"
    ),
    "It|'s| |1|234|567| fooBar| Türk|'te|!\n\n|x| |你好ア| नमस्ते|!|      | $|a|/b|.\r\n": ("afmoe"),
    "It's |1|234|567| fooBar Türk'te!\n\nx 你好ア नमस्ते!       $a/b.\r\n": ("superbpe"),
    "It's| 1234567| fooBar| Türk'te|!\n\n|x| 你好ア| नमस्ते|!      | $a/b|.\r\n": (
        "poro-chat bloom gpt3-finnish"
    ),
    "It's| |1|2|3|4|5|6|7| fooBar| Türk'te|!\n\n|x| 你好ア| नमस्ते|!      | $a/b|.\r\n": ("viking"),
    "It|'|s| |123|456|7| fooBar| Türk|'|te|!|\n|\n|x| 你好ア| नमस|्|त|े|!|       |$|a|/|b|.|\r\n": (
        "falcon default"
    ),
    "It|'|s| |1|2|3|4|5|6|7| fooBar| Türk|'|te|!|\n|\n|x| 你好ア| नमस|्|त|े|!|    |  | |$|a|/|b|.|\r|\n": (
        "chameleon"
    ),
}
"""Pieces of one text -> the names that cut it so."""


@pytest.mark.parametrize(
    ("pre", "pieces"), [(name, cut) for cut, names in PIECES.items() for name in names.split()]
)
@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml.pre is 'default'")
def test_how_each_split_cuts(tmp_path: Path, pre: str, pieces: str) -> None:
    ours = backend_from_gguf(write(tmp_path / "a.gguf", **byte_level(pre)))
    decode = decoders.ByteLevel().decode
    cut = ours.pre_tokenizer.pre_tokenize_str(pieces.replace("|", ""))
    assert "|".join(decode([piece]) for piece, _ in cut) == pieces


def test_every_split_that_is_known_is_in_the_table_once() -> None:
    listed = [name for names in PIECES.values() for name in names.split()]
    assert sorted(listed) == sorted(SPLITS)


def test_a_file_that_does_not_name_its_split_turns_ids_into_text_and_no_text_into_ids(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "a.gguf", **byte_level(None))
    for build in (tokenizer_from_gguf, backend_from_gguf):
        with pytest.raises(
            CheckpointFileError, match=r"has no tokenizer.ggml.pre.*--pre-tokenizer"
        ):
            build(file)
    tokenizer = GGUFTokenizer(file)
    named = GGUFTokenizer(write(tmp_path / "b.gguf", **byte_level()))
    ids = named.encode("the quick 1")
    assert tokenizer.decode(ids) == "the quick 1" and tokenizer.eos_token_ids == {2}
    messages = [{"role": "user", "content": "hi"}]
    for ask in (lambda: tokenizer.encode("the"), lambda: tokenizer.apply_chat(messages)):
        with pytest.raises(CheckpointFileError, match="pass token ids instead of text"):
            ask()
    assert named.apply_chat(messages)


@pytest.mark.parametrize(
    ("name", "pre"), [("llama-bpe", None), ("qwen2", "default"), ("gpt-2", "")]
)
def test_a_known_vocabulary_says_how_text_is_split(name: str, pre: str | None) -> None:
    known = VOCABULARIES[name]
    tokens = [known.get(at, f"<{at}>") for at in range(max(known) + 1)]
    tokens[:2] = ["a", "ab"]
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": []}

    def steps(**changes: object) -> str:
        metadata = {f"tokenizer.ggml.{key}": each for key, each in {**fields, **changes}.items()}
        return str(backend_from_gguf(gguf_of(metadata)).pre_tokenizer)

    assert steps() == steps(pre=name)
    tokens[min(known)] = "other"
    with pytest.raises(CheckpointFileError, match="has no tokenizer.ggml.pre"):
        steps(pre=None)


def test_what_a_converter_did_not_know_is_told(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"tokenizer.ggml.pre is 'default'.*may not be the model's"
    ):
        backend_from_gguf(write(tmp_path / "a.gguf", **byte_level("default")))


def test_equal_to_transformers_loading_the_same_file(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    file = write(tmp_path / "a.gguf", **byte_level("llama-bpe", False, LLAMA3))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf", local_files_only=True)
    ours = tokenizer_from_gguf(file)
    # transformers spells out of the byte alphabet what it finds outside it, control tokens too.
    for text in (text for text in CORPUS if "full▁width" not in text and "    " not in text):
        assert ids(ours, text) == ids(theirs, text), text
    messages = [{"role": "user", "content": "the quick 1"}]
    for prompt in (True, False):
        chat = [
            t.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
            for t in (ours, theirs)
        ]
        assert chat[0] == chat[1]
    for name in ("bos", "eos", "unk", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")


def test_special_and_user_defined_tokens(tmp_path: Path) -> None:
    fields = byte_level()
    ours = tokenizer_from_gguf(write(tmp_path / "a.gguf", **fields))
    tokens = fields["tokens"]
    for text in (*SPECIALS, *USER):
        assert ids(ours, text) == [tokens.index(text)]
    assert len(ours) == len(tokens) == ours.vocab_size
    encoded = ids(ours, "<|im_start|>a<think>")
    assert ours.decode(encoded, skip_special_tokens=True) == "a<think>"
    assert (ours.bos_token, ours.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (ours.unk_token, ours.pad_token) == ("<|endoftext|>", "<|im_end|>")


def test_entries_that_fill_up_the_head_are_no_tokens(tmp_path: Path) -> None:
    """Converters write one for each row of a padded head, of type unused or user-defined."""
    fields = byte_level()
    size = len(fields["tokens"])
    fill = [f"[PAD{size}]", "<reserved>", f"[PAD{size + 2}]", "[PAD7]"]
    tokens, types = [*fields["tokens"], *fill], [*fields["token_type"], 5, 5, 4, 4]
    path = tmp_path / "a.gguf"
    file = write(path, **{**fields, "tokens": tokens, "token_type": types})
    assert gguf_unused_token_ids(file) == {size, size + 1, size + 2}
    wrapped = TransformersTokenizer(tokenizer_from_gguf(file), gguf_unused_token_ids(file))
    assert wrapped.tokens == {**dict(enumerate(fields["tokens"])), size + 3: "[PAD7]"}


def test_the_chat_template_comes_along(tmp_path: Path) -> None:
    ours = tokenizer_from_gguf(write(tmp_path / "a.gguf", **byte_level()))
    chat = ours.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    bare = {**byte_level(), "chat_template": None}
    assert tokenizer_from_gguf(write(tmp_path / "b.gguf", **bare)).chat_template is None


@pytest.mark.parametrize(
    ("fields", "front", "back"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_eos_token": True}, [], [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_bos_token": None}, [], []),
        ({"add_bos_token": None, "pre": "llama-bpe"}, [1], []),
    ],
)
def test_what_is_added_around_a_text(
    tmp_path: Path, fields: dict, front: list[int], back: list[int]
) -> None:
    file = write(tmp_path / "a.gguf", **{**byte_level(), **fields})
    ours, full = backend_from_gguf(file), tokenizer_from_gguf(file)
    for text in ("", "the", "<|im_start|>the"):
        plain = ours.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).ids == ids(full, text) == [*front, *plain, *back]
        assert full(text, add_special_tokens=False).input_ids == plain
    pair = ours.encode("a", "b").ids
    assert pair == full("a", "b").input_ids


@pytest.mark.parametrize("bos", ["a b", "a:0", "$A"])
def test_a_bos_whose_text_is_grammar_of_the_library(tmp_path: Path, bos: str) -> None:
    fields = byte_level()
    fields["tokens"][1] = bos
    file = write(tmp_path / "a.gguf", **{**fields, "add_bos_token": True})
    plain = backend_from_gguf(file).encode("the", add_special_tokens=False).ids
    assert ids(tokenizer_from_gguf(file), "the") == [1, *plain]


# --- SentencePiece -----------------------------------------------------------


@pytest.mark.parametrize("prefix", [None, True, False])
def test_sentencepiece_pieces_and_bytes(tmp_path: Path, prefix: bool | None) -> None:
    file = write(tmp_path / "a.gguf", **sentencepiece(add_space_prefix=prefix))
    ours, full = backend_from_gguf(file), tokenizer_from_gguf(file)
    first = "the" if prefix is False else "▁the"
    assert ours.encode("the quick fox").tokens == ["<s>", first, "▁quick", "▁fox"]
    assert ours.encode("☃").tokens[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]
    assert ours.encode("<0x41>").tokens != ["<s>", "<0x41>"]
    for text in CORPUS:
        if "\u0301" in text or "<" in text:
            continue
        encoded = ours.encode(text).ids
        assert encoded == ids(full, text)
        # A leading space stands for the prefix (transformers' rule) and goes with it.
        kept = text[1:] if prefix is not False and text.startswith(" ") else text
        assert ours.decode(encoded) == full.decode(encoded, skip_special_tokens=True) == kept


def test_sentencepiece_equals_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    file = write(tmp_path / "a.gguf", **sentencepiece())
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf", local_files_only=True)
    ours = tokenizer_from_gguf(file)
    for text in CORPUS:
        assert ids(ours, text) == ids(theirs, text), text
    assert ours.bos_token_id == theirs.bos_token_id == 1


def test_scores_order_the_merges_and_listed_merges_win(tmp_path: Path) -> None:
    fields = {"model": "llama", "tokens": ["<unk>", "a", "b", "c", "ab", "bc"]}
    fields["add_space_prefix"] = False
    letters = [0.0, -9.0, -9.0, -9.0]
    for name, pair, more, expected in (
        ("a", [-2.0, -1.0], {}, ["a", "bc"]),
        ("b", [-1.0, -2.0], {}, ["ab", "c"]),
        ("c", [-1.0, -1.0], {}, ["ab", "c"]),  # the lower id
        ("d", [-2.0, -1.0], {"merges": ["a b", "b c"]}, ["ab", "c"]),
    ):
        file = write(tmp_path / f"{name}.gguf", **fields, scores=letters + pair, **more)
        assert backend_from_gguf(file).encode("abc").tokens == expected, name


def test_only_the_start_of_a_text_gets_the_space_prefix(tmp_path: Path) -> None:
    ours = backend_from_gguf(write(tmp_path / "a.gguf", **sentencepiece()))
    assert ours.encode("the</s>the").tokens == ["<s>", "▁the", "</s>", "the"]


def test_control_and_byte_tokens_are_never_merged_from_text(tmp_path: Path) -> None:
    """Text that spells a byte token must not become it."""
    tokens = ["<unk>", "<", "0", "<0", "x", "<0x", "41>", "4", "1", ">", "41", "<0x41>"]
    types = [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6]
    fields = {"model": "llama", "tokens": tokens, "token_type": types, "add_space_prefix": False}
    scores = [-float(index) for index in range(len(tokens))]
    ours = backend_from_gguf(write(tmp_path / "a.gguf", **fields, scores=scores))
    assert ours.encode("<0x41>").tokens == ["<0x", "41>"]


# --- what is refused ---------------------------------------------------------


def last(key: str, value: object) -> Callable[[dict], dict]:
    return lambda fields: {**fields, key: [*fields[key][:-1], value]}


def sets(**changes: object) -> Callable[[dict], dict]:
    return lambda fields: {**fields, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (sets(model="bert"), "model is 'bert'.*pass token ids"),
        (sets(pre="unheard-of"), "pre is 'unheard-of', .* known are gpt-2"),
        (sets(bos_token_id=10**6), r"bos_token_id is 1000000, the vocabulary has \d+ tokens"),
        (sets(add_bos_token=True, bos_token_id=None), "asks for bos .* names no bos token"),
        (sets(add_eos_token=True, eos_token_id=None), "asks for eos .* names no eos token"),
        (sets(add_bos_token="yes"), "add_bos_token is a str, expected bool"),
        (sets(token_type=[1, 2]), r"token_type has 2 values for \d+ tokens"),
        (sets(tokens=[1, 2]), "tokens holds 1, expected str values"),
        (sets(tokens=[0, 0]), "tokens holds 0, expected str values"),
        (sets(tokens="abc"), "tokens is a str, expected list"),
        (sets(merges=None), "has no tokenizer.ggml.merges"),
        (last("tokens", "<|im_end|>"), "lists token '<|im_end|>' 2 times"),
        (last("merges", "nothing here"), "merge 'nothing here' does not join"),
        (last("merges", "single"), "merge 'single' does not join"),
        (sets(eos_token_id=True), "eos_token_id is a bool, expected int"),
        (sets(chat_template=5), "chat_template is a int, expected str"),
    ],
)
def test_contradictions_are_named(
    tmp_path: Path, change: Callable[[dict], dict], message: str
) -> None:
    file = write(tmp_path / "a.gguf", **change(byte_level()))
    with pytest.raises(CheckpointFileError, match=message) as error:
        tokenizer_from_gguf(file)
    assert error.value.file == str(file.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": None}, "neither tokenizer.ggml.merges nor tokenizer.ggml.scores"),
        ({"scores": [1]}, "scores holds 1, expected float"),
    ],
)
def test_sentencepiece_without_an_order_is_named(
    tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(CheckpointFileError, match=message):
        backend_from_gguf(write(tmp_path / "a.gguf", **sentencepiece(**change)))


def test_pieces_longer_than_sentencepiece_makes_are_refused() -> None:
    """Each costs time of the square of its length."""
    metadata = {"model": "llama", "tokens": ["a", "a" * 513], "scores": [0.0, 0.0]}
    with pytest.raises(CheckpointFileError, match="a token of 513 characters"):
        backend_from_gguf(
            gguf_of({f"tokenizer.ggml.{key}": each for key, each in metadata.items()})
        )


@pytest.mark.parametrize("keys", [(), ("model",)])
def test_a_file_without_tokenizer_says_to_pass_ids(tmp_path: Path, keys: tuple[str, ...]) -> None:
    fields = {key: value for key, value in byte_level().items() if key in keys}
    with pytest.raises(InputError, match="describes no tokenizer.*pass token ids"):
        tokenizer_from_gguf(write(tmp_path / "a.gguf", **fields))


def test_every_id_that_ends_a_generation(tmp_path: Path) -> None:
    """Stated ones first, then those that llama.cpp knows by their text."""
    fields = byte_level()
    assert gguf_eos_token_ids(write(tmp_path / "a.gguf", **fields)) == (2, 0)
    more = {**fields, "eot_token_id": 3, "eom_token_id": 2}
    assert gguf_eos_token_ids(write(tmp_path / "b.gguf", **more)) == (2, 3, 0)
    none = {**fields, "eos_token_id": None}
    assert set(gguf_eos_token_ids(write(tmp_path / "c.gguf", **none))) == {0, 2}


@pytest.mark.parametrize(
    ("added", "ends"),
    [
        (["<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"], 2),
        (["<end_of_turn>", "<start_of_turn>"], 1),
        (["<|end|>", "<|assistant|>"], 1),
        (["<|return|>", "<|call|>", "<|end|>"], 2),
        (["<|flush|>", "<|calls|>", "<|end|>"], 2),
        (["<|file_sep|>", "<|fim_pad|>", "</s>"], 0),
    ],
)
@pytest.mark.parametrize("kind", [1, 4])
def test_tokens_end_a_turn_by_their_text(
    tmp_path: Path, added: list[str], ends: int, kind: int
) -> None:
    """Whatever type a converter gave them: they are one token in a prompt and no text in an output."""
    fields = byte_level()
    first = len(fields["tokens"])
    fields["tokens"] = fields["tokens"] + added
    fields["token_type"] = fields["token_type"] + [kind] * len(added)
    file = write(tmp_path / "a.gguf", **fields)
    assert sorted(gguf_eos_token_ids(file)) == [0, 2, *range(first, first + ends)]
    tokenizer = GGUFTokenizer(file)
    for at in range(first, first + ends):
        assert tokenizer.encode(f"a{added[at - first]}b")[1] == at
        assert tokenizer.hidden_text(at) == added[at - first]


@pytest.mark.parametrize("typed", [True, False])
def test_sentencepiece_ids_by_custom(tmp_path: Path, typed: bool) -> None:
    """1 begins, 2 ends and 0 is unknown where the file names none, as long as they are such."""
    missing = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id"))
    fields = {**sentencepiece(), **missing}
    if not typed:
        fields["token_type"] = None
    file = write(tmp_path / "a.gguf", **fields)
    ours = tokenizer_from_gguf(file)
    assert (ours.bos_token_id, ours.eos_token_id, ours.unk_token_id) == (1, 2, 0)
    assert gguf_eos_token_ids(file) == (2,)
    assert ids(ours, "the quick") == ids(
        tokenizer_from_gguf(write(tmp_path / "b.gguf", **sentencepiece())), "the quick"
    )
    other = {**fields, "tokens": [f"x{text}" for text in fields["tokens"]]}
    if typed:
        other["token_type"] = [1] * len(other["tokens"])
    assert gguf_eos_token_ids(write(tmp_path / "c.gguf", **other)) == ()
