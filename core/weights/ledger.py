"""Ledger: the proof that every parameter element was written exactly once.

It holds boxes, not elements: boxes inside the parameter that do not intersect and whose volumes
add up to the parameter's size cover it exactly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from ..parallel import Box, box_numel, whole

Entry = tuple[Box, str]
"""A box and what filled it."""


@dataclass
class Ledger:
    """Boxes written, by parameter, and boxes read, by checkpoint tensor."""

    reads: dict[str, list[Box]] = field(default_factory=dict)
    _written: dict[str, list[Entry]] = field(default_factory=dict)
    _volume: dict[str, int] = field(default_factory=dict)
    _reach: dict[str, int] = field(default_factory=dict)

    def write(self, parameter: str, box: Box, source: str) -> str | None:
        """Enter a write; None, or what had filled a common element before (nothing entered)."""
        self.touch(parameter)
        volume = box_numel(box)
        if not volume:
            return None
        earlier = self._intersecting(parameter, box)
        if earlier is not None:
            return earlier
        insort(self._written[parameter], (box, source))
        self._volume[parameter] = self._volume.get(parameter, 0) + volume
        extent = box[0][1] - box[0][0] if box else 1
        self._reach[parameter] = max(self._reach.get(parameter, 0), extent)
        return None

    def touch(self, parameter: str) -> None:
        """Enter a parameter of which this rank writes nothing (an empty shard)."""
        self._written.setdefault(parameter, [])

    def read(self, tensor: str, box: Box) -> None:
        """Enter a read."""
        self.reads.setdefault(tensor, []).append(box)

    def written(self, parameter: str) -> tuple[Box, ...]:
        """Boxes written into a parameter, none empty."""
        return tuple(box for box, _ in self._written.get(parameter, ()))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters that anything was entered for, empty shards included."""
        return tuple(self._written)

    def unwritten(self, parameter: str, shape: tuple[int, ...]) -> int:
        """Elements of a parameter of this shape that nothing filled."""
        total = box_numel(whole(shape))
        for box in self.written(parameter):
            if len(box) != len(shape) or any(
                start < 0 or stop > size for (start, stop), size in zip(box, shape, strict=True)
            ):
                return total
        return total - self._volume.get(parameter, 0)

    def _intersecting(self, parameter: str, box: Box) -> str | None:
        """What fills a box that shares an element with this one.

        Boxes are sorted by where they start in dimension 0, and none is longer than the longest
        there, so only a window of neighbours can meet this one.
        """
        entries = self._written[parameter]
        if not box:
            return entries[0][1] if entries else None
        start, stop = box[0]
        first = bisect_left(entries, start - self._reach.get(parameter, 0), key=_first_row)
        for other, source in entries[first:]:
            if other[0][0] >= stop:
                return None
            if _intersect(box, other):
                return source
        return None


def _first_row(entry: Entry) -> int:
    return entry[0][0][0]


def _intersect(a: Box, b: Box) -> bool:
    return all(max(x[0], y[0]) < min(x[1], y[1]) for x, y in zip(a, b, strict=True))
