"""Model: build, load, run, generate."""

from .engine import Engine, EngineLimits
from .generation import GenerateResult, StreamChunk
from .loading import build, load, load_weights
from .model import Model
from .prefix_cache import CacheStats
from .scoring import PromptLogprobs, PromptOutput
from .speculative.state import SpeculationReport

__all__ = [
    "CacheStats",
    "Engine",
    "EngineLimits",
    "GenerateResult",
    "Model",
    "PromptLogprobs",
    "PromptOutput",
    "SpeculationReport",
    "StreamChunk",
    "build",
    "load",
    "load_weights",
]
