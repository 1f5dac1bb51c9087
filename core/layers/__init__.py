"""The bricks: parallel linears, embedding, norm, rotary, attention adapter, logits, pooler."""

from ..context import BuildContext
from .activation import GatedActivation, SiluAndMul, get_act_and_mul
from .linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from .logits import InputLogprobs, LogitsProcessor, LogitsProcessorOutput
from .norm import RMSNorm
from .pooler import Pooler, PoolingType
from .qkv import QKVParallelLinear
from .radix_attention import RadixAttention
from .rotary import RotaryEmbedding, RotaryRows, get_rope
from .vocab import ParallelLMHead, VocabParallelEmbedding

__all__ = [
    "BuildContext",
    "ColumnParallelLinear",
    "GatedActivation",
    "InputLogprobs",
    "LinearBase",
    "LogitsProcessor",
    "LogitsProcessorOutput",
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "Pooler",
    "PoolingType",
    "QKVParallelLinear",
    "RMSNorm",
    "RadixAttention",
    "ReplicatedLinear",
    "RotaryEmbedding",
    "RotaryRows",
    "RowParallelLinear",
    "SiluAndMul",
    "VocabParallelEmbedding",
    "get_act_and_mul",
    "get_rope",
]
