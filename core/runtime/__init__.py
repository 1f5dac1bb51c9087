"""Model: build, load, run, generate."""

from .engine import Engine, EngineLimits
from .generation import GenerateResult, StreamChunk
from .loading import build, load, load_weights
from .model import Model
from .scoring import PromptLogprobs

__all__ = [
    "Engine",
    "EngineLimits",
    "GenerateResult",
    "Model",
    "PromptLogprobs",
    "StreamChunk",
    "build",
    "load",
    "load_weights",
]
