"""Survey: what a checkpoint would do on every rank of a topology, proven from headers."""

from .explanation import Explanation
from .heads import HeadShare, holders
from .memory import Load, RankMemory
from .preflight import preflight
from .report import PreflightReport, RankFault, RankReport

__all__ = [
    "Explanation",
    "HeadShare",
    "Load",
    "PreflightReport",
    "RankFault",
    "RankMemory",
    "RankReport",
    "holders",
    "preflight",
]
