"""Seeded mutations of bytes: blind ones, and ones that know JSON tokens and length fields."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[\[\]{}:,]'
)
_TOKENS = (
    b"0", b"-1", b"1", b"2", b"16", b"255", b"65536", b"4294967296", b"9223372036854775807",
    b"18446744073709551615", b"1e309", b"-1e309", b"1e-400", b"0.5", b"NaN", b"Infinity", b"null",
    b"true", b"false", b'""', b'"F32"', b'"BF16"', b'"I64"', b'"F4"', b'"../x.safetensors"',
    b'"\\ud800"', b'"\\u0000"', b'"model.layers.0.w"', b'"yarn"', b'"llama3"', b"[]", b"{}", b"[[]]",
    b'{"a":1}', b"[0,16]", b"1" * 400, b'"' + b"a" * 2000 + b'"',
)  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 8, 12, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63,
            2**64 - 1)  # fmt: skip
Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutate(dice: random.Random, corpus: Sequence[bytes], framed: bool) -> bytes:
    """One new input out of a corpus.

    Args:
        dice: seeded.
        corpus: what to start from.
        framed: safetensors, whose header length is made right again half of the time.
    """
    content = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
        content = dice.choice(MUTATIONS)(dice, content, corpus)
    return _reframed(content) if framed and dice.random() < 0.5 else content


def _flip(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randrange(len(content) + 1)
    return content[:at] + bytes([dice.choice((0, 1, 0x22, 0x7F, 0x80, 0xFF))]) + content[at + 1 :]


def _cut(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    one, two = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    return content[:one] + content[two:]


def _repeat(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    one, two = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    times = dice.choice((1, 2, 50)) if two - one < 400 else 1
    return content[:two] + content[one:two] * times + content[two:]


def _splice(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    other = dice.choice(corpus)
    return content[: dice.randrange(len(content) + 1)] + other[dice.randrange(len(other) + 1) :]


def _number(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    form = dice.choice(("<B", "<H", "<I", "<Q"))
    raw = struct.pack(form, dice.choice(_NUMBERS) % 2 ** (8 * struct.calcsize(form)))
    at = dice.randrange(len(content) + 1)
    return content[:at] + raw + content[at + len(raw) :]


def _token(dice: random.Random, content: bytes, corpus: Sequence[bytes]) -> bytes:
    found = list(_TOKEN.finditer(content))
    if not found:
        return content
    start, stop = dice.choice(found).span()
    other = dice.choice(found).group() if dice.random() < 0.4 else dice.choice(_TOKENS)
    return content[:start] + other + content[stop:]


MUTATIONS: tuple[Mutation, ...] = (_flip, _cut, _repeat, _splice, _number, _token, _token, _token)


def _reframed(content: bytes) -> bytes:
    """The header's length as its braces say it, so that more than the length is tried."""
    end = content.rfind(b"}") + 1
    return struct.pack("<Q", max(end - 8, 0)) + content[8:]
