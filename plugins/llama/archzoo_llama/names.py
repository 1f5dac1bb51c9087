"""Checkpoint names that differ from the skeleton's own."""

from __future__ import annotations

from dataclasses import replace

from archzoo.weights import STANDARD_NESTING, NameRules, Rename

EAGLE3_HEAD = NameRules(
    renames=(
        Rename("model.midlayer.**", "model.layers.0.**"),
        Rename("d2t", "logits_processor.d2t"),
        Rename("t2d", "logits_processor.t2d"),
    ),
    nesting=replace(
        STANDARD_NESTING,
        inside=("embed_tokens", "midlayer", "norm"),
        beside=("lm_head", "fc", "d2t", "t2d"),
    ),
)
"""An EAGLE-3 head calls its only layer ``midlayer`` and stores everything at the top."""
