"""Decoder skeleton shared by plugins."""

from .base import DecoderBase
from .causal_lm import CausalLM
from .classifier import SequenceClassifier
from .decoder import DecoderLayer, DecoderModel, make_norm
from .embedding import EmbeddingModel
from .hand_off import PPProxyTensors
from .mlp import GatedMLP
from .names import name_map

__all__ = [
    "CausalLM",
    "DecoderBase",
    "DecoderLayer",
    "DecoderModel",
    "EmbeddingModel",
    "GatedMLP",
    "PPProxyTensors",
    "SequenceClassifier",
    "make_norm",
    "name_map",
]
