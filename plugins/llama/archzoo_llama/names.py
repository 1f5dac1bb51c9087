"""Checkpoint names that differ from the skeleton's own."""

from __future__ import annotations

from archzoo.weights import (
    GGUF_LLAMA_RENAMES,
    GGUF_LLAMA_SKIPS,
    NameRules,
    Rename,
    Skip,
)

GGUF = NameRules(
    renames=tuple(Rename(pattern, name) for pattern, name in GGUF_LLAMA_RENAMES),
    skips=tuple(Skip(rule, pattern, why) for rule, pattern, why in GGUF_LLAMA_SKIPS),
)
"""llama.cpp's names; q, k, v and gate, up are stacked by the skeleton's rules afterwards."""

BACKBONE = NameRules(
    skips=(Skip("head of a backbone", "lm_head.*", "an embedding model has no head"),),
)
"""A backbone has no head, whatever else was saved beside it."""
