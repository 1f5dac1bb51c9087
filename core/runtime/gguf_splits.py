"""How byte-level vocabularies split text before merging, by the names that llama.cpp gives.

Data: a name of ``tokenizer.ggml.pre`` -> patterns of the ``tokenizers`` library.

Source:
    The models' tokenizer.json files as far as llama.cpp quotes them, else its own patterns
    (llama-vocab.cpp of September 2026), which are the same but for what its engine lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def _ranges(points: str) -> str:
    """Code points and ranges of them, in hexadecimal, as the inside of a bracket."""
    return re.sub("[0-9A-F]+", lambda found: chr(int(found[0], 16)), points).replace(" ", "")


def _cased(ending: str = "", without: str = "") -> str:
    """Words that end before a capital that follows a small letter."""
    upper, lower = (
        rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]" for case in (r"Lu}\p{Lt", "Ll")
    )
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}"


_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS, _PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = _cased(f"{_CONTRACTION}?")
_NO_HAN = r"&&[^\p{Han}]"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = f"{_CONTRACTION}|{_WORD}|{_THREE_DIGITS}|{_SIGNS}|{_SPACES}"
_QWEN2 = f"{_CONTRACTION}|{_WORD}|{_DIGIT}|{_SIGNS}|{_SPACES}"
_GPT4O = f"{_CASED}|{_THREE_DIGITS}|{_PATHS}|{_SPACES}"
_DEEPSEEK3 = rf"{_PUNCTUATED}[\r\n]*|{_SPACES}"
_BLOOM = rf" ?[^(\s|.,!?){_ranges('2026 3002 FF0C 3001 964 6D4 60C')}]+"
_HAN_OR_KANA = f"[{_ranges('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_CJK = f"[{_ranges('4E00-9FA5 800-4E00 AC00-D7FF')}]+"
_ASIAN = _ranges(
    "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF "
    "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
_ASIAN_SIGNS = _ranges("FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F")
_DEEPSEEK_LETTERS = _ranges(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_SIGNS = _ranges("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")


@dataclass(frozen=True)
class Split:
    """How a byte-level vocabulary splits text before merging.

    Args:
        patterns: one after the other; a match is a piece, and so is what lies between two.
        whole_words: a piece that is a token is taken whole, merges or not.
        add_bos: what a file without the flag means.
        nfc: text is composed (NFC) first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_NAMES = {
    Split((_GPT2,)): "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 "
    "mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de",
    Split((_DIGIT, _GPT2)): "smollm starcoder refact codeshell exaone minerva-7b mellum2",
    Split((_DIGIT, _GPT2), nfc=True): "command-r",
    Split(
        (_LLAMA3,), whole_words=True, add_bos=True
    ): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    Split((_LLAMA3,)): "smaug-bpe dbrx chatglm-bpe glm4",
    Split((_QWEN2,), nfc=True): "qwen2 deepseek-r1-qwen",
    Split((_QWEN2,)): "megrez stablelm2 hunyuan solar-open grok-2 kormo f2llmv2",
    Split(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGIT}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        ),
        nfc=True,
    ): "qwen35",
    Split((f"{_WORD}|{_DIGIT}|{_SIGNS}|{_SPACES}",)): "ufakzeka",
    Split((r"[^\n]+|\n+", _QWEN2)): "laguna",
    Split(
        (_THREE_DIGITS, rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACES}"), whole_words=True
    ): "minicpm5",
    Split(
        (rf"{_CONTRACTION}|{_WORD}|{_DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ): "seed-coder",
    Split(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "bailingmoe bailingmoe2 llada-moe",
    Split(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "exaone-moe",
    Split(
        (
            rf"{_CONTRACTION}|{_WORD}|{_THREE_DIGITS}|{_SIGNS}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s",
        )
    ): "jais-2",
    Split((f"{_cased()}|{_DIGIT}|{_PATHS}|{_SPACES}",), whole_words=True, add_bos=True): "tekken",
    Split((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Split((_GPT4O,), whole_words=True): "granite-embed-multi-97m",
    Split((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)): "tiny_aya cohere2moe",
    Split(
        (
            rf"\p{{Han}}+|{_cased(f'{_CONTRACTION}?', _NO_HAN)}|{_THREE_DIGITS}|{_SIGNS}"
            f"|{_SPACES}",
        )
    ): "kimi-k2",
    Split(
        (
            f"[{_ranges('AC00-D7A3 3131-318E')}]+|[{_ASIAN_SIGNS}]+|[{_ranges('3105-312F')}]+"
            f"|{_HAN_OR_KANA}",
            f"{_CASED}|{_DIGIT}|{_PATHS}|{_SPACES}",
        ),
        whole_words=True,
    ): "youtu",
    Split(
        (
            r"[\r\n]",
            *(rf"\s?[{letters}]+" for letters in (_DEEPSEEK_LETTERS, _DEEPSEEK_SIGNS)),
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)): "deepseek-coder",
    Split((_THREE_DIGITS, _HAN_OR_KANA, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Split(
        (_THREE_DIGITS, _HAN_OR_KANA, rf"{_PUNCTUATED}|[\r\n]|\s+(?!\S)|\s+", _DIGIT)
    ): "spark2_5",
    Split((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", f"[{_ASIAN}]+", _DEEPSEEK3)): "afmoe",
    Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    Split((_BLOOM,)): "poro-chat bloom gpt3-finnish",
    Split((_BLOOM, _DIGIT)): "viking",
    Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    Split(
        (
            *("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", _DIGIT),
            *(r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
        ),
        add_bos=True,
    ): "chameleon",
    Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
}

SPLITS = {name: split for split, names in _NAMES.items() for name in names.split()}
"""``tokenizer.ggml.pre`` -> what it means. llama.cpp knows more: vocabularies that are not of bytes
(gemma4, granite-embed-multi-311m, sarvam-moe, whitespace) and encoders that put a separator behind
each text (jina-v1-en, jina-v2-code, roberta-bpe)."""

VOCABULARIES = {
    "llama-bpe": {1917: "Ġworld", 9906: "Hello", 128000: "<|begin_of_text|>"},
    "qwen2": {1879: "Ġworld", 9707: "Hello", 151643: "<|endoftext|>"},
    "gpt-2": {995: "Ġworld", 15496: "Hello", 50256: "<|endoftext|>"},
}
"""Split -> tokens that tell its vocabulary from others, where a file does not name the split."""
