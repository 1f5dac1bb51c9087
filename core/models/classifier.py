"""SequenceClassifier: a decoder whose last row is scored by a classification or reward head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from ..config import LLAMA_LIKE, ConfigAdapter, ModelConfig
from ..errors import ConfigError
from ..forward import PoolingRequest
from ..layers import BuildContext, ReplicatedLinear
from ..layers.pooler import at_least_float32
from ..weights import NameRules, Skip
from .base import DecoderBase

SCORE_WEIGHT = "score.weight"
"""The head, where it is one matrix: a row for each label."""


class SequenceClassifier(DecoderBase):
    """Scores of each prompt: ``score`` without a bias over the prompt's last real row.

    The row is found by the prompt's length, never by looking for a pad token, and scores stay raw:
    ``dimensions`` and ``normalize`` of a PoolingRequest are about vectors. The head is small, so
    every rank holds it whole and no collective is needed.

    Args:
        config, ctx, prefix: as in DecoderBase.

    Raises:
        ConfigError: nothing says how many labels there are.
    """

    adapter: ClassVar[ConfigAdapter] = LLAMA_LIKE.with_labels()
    name_rules: ClassVar[Mapping[str, NameRules]] = {
        "hf": NameRules(skips=(Skip("head of a classifier", "lm_head.*", "scores replace logits"),))
    }
    kind: ClassVar[str] = "a classifier without a language-model head"
    serves: ClassVar[tuple[str, ...]] = ("classify",)

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__(config, ctx, prefix)
        if config.num_labels is None:
            raise ConfigError(
                "missing, and so is id2label; state one of them, or give the class an adapter "
                "with_labels()",
                "num_labels",
                config.file,
            )
        self.num_labels = config.num_labels
        self.score = self.on_last_stage("score", lambda where: self.make_score(ctx, where))

    def make_score(self, ctx: BuildContext, prefix: str) -> nn.Module:
        """The head, called as ``score(rows)`` for (P, D) rows and giving (P, labels) and a bias.

        Args:
            ctx, prefix: as everywhere.
        """
        width = self.config.hidden_size
        return ReplicatedLinear(width, self.num_labels, bias=False, ctx=ctx, prefix=prefix)

    @property
    def pooled_width(self) -> int:
        """Scores of a prompt."""
        return self.num_labels

    def scores(self, rows: Tensor) -> Tensor:
        """(P, D) last rows to (P, labels) raw scores; a reward head may weigh them."""
        out: Tensor
        out, _ = self.score(rows)
        return out

    def _pooled(self, rows: Tensor, wanted: PoolingRequest) -> Tensor:
        return at_least_float32(self.scores(rows.to(self.dtype)))
