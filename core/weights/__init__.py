"""Weights: checkpoint sources, name rules, the loader, its ledger and its report."""

from .execution import Progress
from .export import Exporter, Offer
from .filling import Filling
from .gguf_names import GGUF_LLAMA_RENAMES, GGUF_LLAMA_SKIPS, GGUF_NAMES
from .headers import HeaderSource
from .layouts import Fill, Layouts, Placement
from .ledger import Ledger
from .loader import AutoWeightsLoader, Weights, as_source, format_of
from .nesting import Nesting
from .opening import open_headers, open_source
from .plan import LoadPlan
from .remap import NameMap, Rename, Skip, Skipped, Target
from .remap_registry import FORMATS, NameRules, RemapRegistry
from .report import FAULT_KINDS, Fault, WeightReport
from .routing import Claim, ClaimGroup, Routes, route
from .safetensors_source import SafetensorsSource
from .source import (
    IterableSource,
    PlacedSource,
    Stored,
    TensorInfo,
    WeightSource,
    source_tensors_equal,
)
from .standard_names import (
    STANDARD_EXPERT_MAPPING,
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
    "GGUF_NAMES",
    "STANDARD_EXPERT_MAPPING",
    "STANDARD_GATE_UP_MAPPING",
    "STANDARD_NESTING",
    "STANDARD_QKV_MAPPING",
    "STANDARD_SKIPS",
    "STANDARD_SPELLINGS",
    "AutoWeightsLoader",
    "Claim",
    "ClaimGroup",
    "Exporter",
    "Fault",
    "Fill",
    "Filling",
    "HeaderSource",
    "IterableSource",
    "Layouts",
    "Ledger",
    "LoadPlan",
    "NameMap",
    "NameRules",
    "Offer",
    "Partial",
    "Nesting",
    "PlacedSource",
    "Placement",
    "Progress",
    "RemapRegistry",
    "Rename",
    "Routes",
    "SafetensorsSource",
    "Skip",
    "Skipped",
    "Stored",
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
    "open_headers",
    "open_source",
    "route",
    "source_tensors_equal",
]
