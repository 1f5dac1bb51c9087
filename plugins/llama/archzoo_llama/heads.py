"""Classification and reward models over a Llama backbone.

Reference implementations: ``transformers`` ``LlamaForSequenceClassification``; SGLang's
``llama_classification.py`` for the weighted reward head, which ``transformers`` does not have.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from archzoo.config import ModelConfig
from archzoo.errors import ConfigError
from archzoo.layers import BuildContext
from archzoo.models import LinearStack, SequenceClassifier

from .adapters import LLAMA
from .model import LlamaDecoderLayer


class LlamaForSequenceClassification(SequenceClassifier):
    """One score for each label; reward models (Skywork-Reward, …) have a single one."""

    layer = LlamaDecoderLayer
    adapter = LLAMA.with_labels()


class AttributeWeights(nn.Module):
    """How much each attribute of a response counts, read from its last row.

    Shapes:
        rows: (P, D); returns (P, A).
    """

    def __init__(
        self, hidden_size: int, attributes: int, *, ctx: BuildContext, prefix: str
    ) -> None:
        """Three layers with SELU between them."""
        super().__init__()
        widths = (hidden_size, hidden_size, hidden_size, attributes)
        self.fc = LinearStack(widths, F.selu, ctx=ctx, prefix=f"{prefix}.fc")

    def forward(self, rows: Tensor) -> Tensor:
        """(P, D) to (P, A)."""
        out: Tensor
        out, _ = self.fc(rows)
        return out


class LlamaForSequenceClassificationWithNormal_Weights(LlamaForSequenceClassification):
    """URM reward models: a mean and a spread for each attribute, means weighed into one reward."""

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        """Labels come in pairs, one pair for each attribute."""
        super().__init__(config, ctx, prefix)
        if self.num_labels % 2:
            raise ConfigError(
                f"{self.num_labels} is odd; expected a mean and a spread for each attribute",
                "num_labels",
                config.file,
            )
        self.weights = self.on_last_stage(
            "weights",
            lambda where: AttributeWeights(
                config.hidden_size, self.num_labels // 2, ctx=ctx, prefix=where
            ),
        )

    @property
    def pooled_width(self) -> int:
        """One reward."""
        return 1

    def scores(self, rows: Tensor) -> Tensor:
        """(P, D) last rows to (P, 1) rewards; the spreads do not enter."""
        means = super().scores(rows)[:, ::2]
        weights: Tensor = self.weights(rows)
        return (means * weights).sum(-1, keepdim=True)
