"""Classification and reward models over Qwen backbones.

Reference implementations: ``transformers`` ``Qwen2ForSequenceClassification``,
``Qwen3ForSequenceClassification``; for the reward heads the ``modeling_qwen2_rm.py`` that
Qwen2.5-Math-RM-72B and Qwen2.5-Math-PRM-7B bring along.
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from archzoo.layers import BuildContext
from archzoo.models import DecoderLayer, LinearStack, SequenceClassifier

from .adapters import QWEN2, QWEN3
from .model import RERANKING, Qwen3DecoderLayer

REWARD = QWEN2.extend(
    "qwen2 reward",
    defaults={"num_labels": 1},
    names={"num_labels": (), "id2label": ()},
    ignored=dict.fromkeys(("num_labels", "id2label"), "a reward head has a fixed width"),
)


class Qwen2ForSequenceClassification(SequenceClassifier):
    """One raw score for each label; reward models have a single one."""

    layer = DecoderLayer
    adapter = QWEN2.with_labels()


class Qwen3ForSequenceClassification(Qwen2ForSequenceClassification):
    """Qwen3 with a head; a Qwen3-Reranker is stored so with one row, yes minus no."""

    layer = Qwen3DecoderLayer
    adapter = QWEN3.with_labels()
    reranking = RERANKING


class Qwen2ForRewardModel(Qwen2ForSequenceClassification):
    """Qwen2.5-Math-RM: one reward, from two layers with ReLU between them."""

    adapter = REWARD

    def make_score(self, ctx: BuildContext, prefix: str) -> nn.Module:
        """(P, D) to (P, labels) by way of D features."""
        width = self.config.hidden_size
        return LinearStack((width, width, self.num_labels), F.relu, ctx=ctx, prefix=prefix)


class Qwen2ForProcessRewardModel(Qwen2ForRewardModel):
    """Qwen2.5-Math-PRM: bad against good, for each step of a solution."""

    adapter = REWARD.extend("qwen2 process reward", defaults={"num_labels": 2})
    step_token = "<extra_0>"
