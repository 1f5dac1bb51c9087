"""Hugging Face config -> ModelConfig, null-safe, with a ledger of every field."""

from .adapter import LLAMA_LIKE, ConfigAdapter
from .architectures import architectures_of
from .files import read_config
from .gguf import config_from_gguf
from .ledger import ConfigLedger, LedgerEntry
from .model import ModelConfig
from .moe import MoEConfig
from .rope import RopeConfig
from .windows import (
    no_window,
    window_everywhere,
    window_everywhere_if_switched_on,
    window_if_switched_on,
)

__all__ = [
    "LLAMA_LIKE",
    "ConfigAdapter",
    "ConfigLedger",
    "LedgerEntry",
    "MoEConfig",
    "ModelConfig",
    "RopeConfig",
    "architectures_of",
    "config_from_gguf",
    "no_window",
    "read_config",
    "window_everywhere",
    "window_everywhere_if_switched_on",
    "window_if_switched_on",
]
