"""Decoder skeleton shared by plugins."""

from .causal_lm import CausalLM
from .decoder import DecoderLayer, DecoderModel
from .mlp import GatedMLP
from .names import name_map

__all__ = ["CausalLM", "DecoderLayer", "DecoderModel", "GatedMLP", "name_map"]
