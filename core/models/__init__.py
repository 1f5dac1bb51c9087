"""Decoder skeleton shared by plugins."""

from .attention import GroupedQueryAttention
from .base import DecoderBase
from .capturing import states_for_draft
from .causal_lm import CausalLM
from .classifier import SequenceClassifier
from .decoder import DecoderLayer, DecoderModel, make_norm
from .draft import DraftModel
from .embedding import EmbeddingModel
from .hand_off import PPProxyTensors
from .linear_stack import LinearStack
from .mlp import GatedMLP
from .names import name_map
from .reranking import Reranking
from .sparse_mlp import SparseMLP

__all__ = [
    "CausalLM",
    "DecoderBase",
    "DecoderLayer",
    "DecoderModel",
    "DraftModel",
    "EmbeddingModel",
    "GatedMLP",
    "GroupedQueryAttention",
    "LinearStack",
    "PPProxyTensors",
    "Reranking",
    "SequenceClassifier",
    "SparseMLP",
    "make_norm",
    "name_map",
    "states_for_draft",
]
