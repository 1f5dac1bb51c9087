"""Stage boundaries: the residual stream and who pays which sum."""

from .stage import StageBoundary
from .stream import AddNorm, ResidualStream

__all__ = ["AddNorm", "ResidualStream", "StageBoundary"]
