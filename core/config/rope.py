"""RopeConfig: everything that decides a rotary table, as one hashable value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer.

    Two equal values give equal tables, so layers share storage by value.

    Args:
        head_dim: H, width of a query or key head.
        rotary_dim: features that are rotated, at most head_dim (partial rotary leaves the rest).
        theta: base of the frequencies.
        max_position_embeddings: positions the model is configured for.
        rope_type: how frequencies are changed for longer contexts.
        interleaved: pairs are (0, 1), (2, 3), …; otherwise (i, i + rotary_dim / 2).
        factor: linear, dynamic, yarn, llama3 (and longrope's attention factor): context extension.
        original_max_position_embeddings: positions before extension; dynamic, yarn, llama3,
            longrope.
        low_freq_factor, high_freq_factor: llama3's band limits.
        beta_fast, beta_slow: yarn's band limits, in rotations.
        attention_factor: factor on cos and sin; None derives it (yarn, longrope).
        mscale, mscale_all_dim: yarn's attention factor as a quotient of two scales.
        truncate: yarn rounds its band limits to whole features.
        short_factor, long_factor: longrope's divisors, one for each frequency.
    """

    head_dim: int
    rotary_dim: int
    theta: float
    max_position_embeddings: int
    rope_type: RopeType = "default"
    interleaved: bool = False
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Yarn's factor on cos and sin for a context extension; 1 where nothing is extended.

    Source: YaRN (arXiv 2309.00071), sec. 3.4.
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
