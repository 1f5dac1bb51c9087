"""Layer boundaries: who pays which sum, where, and over which rows; planned, not hand-picked.

::

    execute, stream      one forward on a rank's tensors, along a plan (planning)
    stage      what a layer uses; a decoder binds them (models.layer_stack)
"""

from ..planning.facts import (
    Branch,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_moe,
    declare_own,
    declare_parallel,
)
from .execute import AddNorm
from .stage import StageBoundary
from .stream import ResidualStream

__all__ = [
    "AddNorm",
    "Branch",
    "ResidualStream",
    "StageBoundary",
    "StageFacts",
    "declare_attn",
    "declare_ffn",
    "declare_head",
    "declare_moe",
    "declare_own",
    "declare_parallel",
]
