"""Attention backends: what a layer's queries, keys and values become.

``TorchAttention`` serves every case in plain torch over a KV pool; ``reference_attention`` is the
slow dense twin it is compared with. The contract they keep is ``archzoo.forward``'s.
"""

from ..forward import AttentionBackend, AttentionSpec, AttentionType, LayerKV
from .builtin import make_backend, require_backend
from .reference import reference_attention
from .torch_backend import TorchAttention

__all__ = [
    "AttentionBackend",
    "AttentionSpec",
    "AttentionType",
    "LayerKV",
    "TorchAttention",
    "make_backend",
    "reference_attention",
    "require_backend",
]
