"""The batch contract: attention specs, ForwardBatch, KV pool and its layout."""

from .backend import AttentionBackend
from .batch import (
    ForwardBatch,
    ForwardMode,
    LogprobRequest,
    OutputRows,
    PoolingRequest,
    RequestRows,
    TokenRows,
    default_sample_rows,
    last_rows,
)
from .kv_cache import KVCacheLayout, KVPool, LayerKV
from .spec import AttentionSpec, AttentionType

__all__ = [
    "AttentionBackend",
    "AttentionSpec",
    "AttentionType",
    "ForwardBatch",
    "ForwardMode",
    "KVCacheLayout",
    "KVPool",
    "LayerKV",
    "LogprobRequest",
    "OutputRows",
    "PoolingRequest",
    "RequestRows",
    "TokenRows",
    "default_sample_rows",
    "last_rows",
]
