"""EmbeddingModel: a decoder without a head, whose rows are vectors."""

from __future__ import annotations

from typing import ClassVar

from .base import DecoderBase


class EmbeddingModel(DecoderBase):
    """The backbone alone: one vector for each prompt, of the rows that ``pooling`` names."""

    kind: ClassVar[str] = "an embedding model without a head"
    serves: ClassVar[tuple[str, ...]] = ("embed",)
