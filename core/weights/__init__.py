"""Weights: checkpoint sources, name rules, the loader, its ledger and its report."""

from .execution import Progress
from .export import Exporter, Offer
from .filling import Filling
from .gguf_names import GGUF_LLAMA_RENAMES, GGUF_LLAMA_SKIPS
from .ledger import Ledger
from .loader import AutoWeightsLoader, Weights, as_source, format_of
from .nesting import Nesting
from .opening import open_source
from .plan import LoadPlan, Placement
from .remap import NameMap, Rename, Skip, Skipped, Target
from .remap_registry import FORMATS, NameRules, RemapRegistry
from .report import FAULT_KINDS, Fault, WeightReport
from .safetensors_source import SafetensorsSource
from .source import IterableSource, TensorInfo, WeightSource, source_tensors_equal
from .standard_names import (
    STANDARD_GATE_UP_MAPPING,
    STANDARD_NESTING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    STANDARD_SPELLINGS,
)
from .state import WeightState
from .update import Partial, UpdateMode, UpdateReport

__all__ = [
    "FAULT_KINDS",
    "FORMATS",
    "GGUF_LLAMA_RENAMES",
    "GGUF_LLAMA_SKIPS",
    "STANDARD_GATE_UP_MAPPING",
    "STANDARD_NESTING",
    "STANDARD_QKV_MAPPING",
    "STANDARD_SKIPS",
    "STANDARD_SPELLINGS",
    "AutoWeightsLoader",
    "Exporter",
    "Fault",
    "Filling",
    "IterableSource",
    "Ledger",
    "LoadPlan",
    "NameMap",
    "NameRules",
    "Offer",
    "Partial",
    "Nesting",
    "Placement",
    "Progress",
    "RemapRegistry",
    "Rename",
    "SafetensorsSource",
    "Skip",
    "Skipped",
    "Target",
    "TensorInfo",
    "UpdateMode",
    "UpdateReport",
    "WeightReport",
    "WeightSource",
    "WeightState",
    "Weights",
    "as_source",
    "format_of",
    "open_source",
    "source_tensors_equal",
]
