"""A topology in words and as a plain object: one shape in every command that plans for one."""

from __future__ import annotations

from ..parallel import Topology
from .records import Record


def topology_text(topology: Topology) -> str:
    """Sizes of all axes, on one line."""
    groups = f"attn_dp {topology.attn_dp} x attn_tp {topology.attn_tp}"
    experts = f", experts ep {topology.ep} x moe_tp {topology.moe_tp}" if topology.ep > 1 else ""
    return f"tp {topology.tp} = {groups}, pp {topology.pp}{experts}"


def topology_record(topology: Topology) -> Record:
    """Axis -> size."""
    return {axis: getattr(topology, axis) for axis in ("tp", "pp", "attn_dp", "attn_tp", "ep")}
