"""Weights: checkpoint sources, name rules, the loader, its ledger and its report."""

from .execution import Progress
from .gguf_names import GGUF_LLAMA_RENAMES, GGUF_LLAMA_SKIPS
from .ledger import Ledger
from .loader import AutoWeightsLoader, Weights
from .opening import open_source
from .plan import LoadPlan, Placement
from .remap import (
    STANDARD_GATE_UP_MAPPING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    NameMap,
    Rename,
    Skip,
    Skipped,
    Target,
)
from .remap_registry import FORMATS, NameRules, RemapRegistry
from .report import FAULT_KINDS, Fault, WeightReport
from .safetensors_source import SafetensorsSource
from .source import IterableSource, TensorInfo, WeightSource, source_tensors_equal

__all__ = [
    "FAULT_KINDS",
    "FORMATS",
    "GGUF_LLAMA_RENAMES",
    "GGUF_LLAMA_SKIPS",
    "STANDARD_GATE_UP_MAPPING",
    "STANDARD_QKV_MAPPING",
    "STANDARD_SKIPS",
    "AutoWeightsLoader",
    "Fault",
    "IterableSource",
    "Ledger",
    "LoadPlan",
    "NameMap",
    "NameRules",
    "Placement",
    "Progress",
    "RemapRegistry",
    "Rename",
    "SafetensorsSource",
    "Skip",
    "Skipped",
    "Target",
    "TensorInfo",
    "WeightReport",
    "WeightSource",
    "Weights",
    "open_source",
    "source_tensors_equal",
]
