"""EmbeddingModel: a decoder without a head, whose rows are vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..weights import NameRules, Skip
from .base import DecoderBase


class EmbeddingModel(DecoderBase):
    """The backbone alone: one vector for each prompt, of the rows that ``pooling`` names."""

    name_rules: ClassVar[Mapping[str, NameRules]] = {
        "hf": NameRules(
            skips=(Skip("head of a backbone", "lm_head.*", "an embedding model has no head"),)
        )
    }
    kind: ClassVar[str] = "an embedding model without a head"
    serves: ClassVar[tuple[str, ...]] = ("embed",)
