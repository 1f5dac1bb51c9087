"""What moving bytes costs: a start-up time and a rate for each kind of link. Defaults, to override.

Times are integer femtoseconds, so that every host adds them up to the same sum.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

MICROSECOND = 10**9
"""In femtoseconds."""

GB = 10**9


class Link(NamedTuple):
    """A link between ranks: alpha and beta of a transfer.

    Args:
        start: femtoseconds before the first byte (alpha).
        rate: bytes for each second and rank, one way (1 / beta).
    """

    start: int
    rate: int


LINKS = {
    "gloo": Link(60 * MICROSECOND, 2 * GB),
    "nvlink": Link(6 * MICROSECOND, 350 * GB),
    "pcie": Link(12 * MICROSECOND, 24 * GB),
    "ethernet": Link(30 * MICROSECOND, 11 * GB),
}
"""Not measured on the machine at hand: what such links usually give."""


def over_link(kind: str, ranks: int, nbytes: int) -> int:
    """Bytes that each rank sends when all meet in a ring.

    Args:
        kind: all_reduce, reduce_scatter, all_gather or send.
        ranks: that meet.
        nbytes: that each rank brings.
    """
    parts = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": ranks}
    return (ranks - 1) * nbytes * parts[kind] // ranks if kind in parts else nbytes


@dataclass(frozen=True)
class CostTable:
    """Costs of one machine; rank 0's table is everyone's.

    Args:
        link: between ranks.
        by_axis: other links, by name of the axis (attn_dp, attn_tp, pp).
        kernel: femtoseconds to start an operation that moves bytes in local memory.
        memory: bytes each second of local memory.
    """

    link: Link = LINKS["nvlink"]
    by_axis: tuple[tuple[str, Link], ...] = ()
    kernel: int = 2 * MICROSECOND
    memory: int = 3000 * GB

    def meeting(self, kind: str, axes: tuple[str, ...], ranks: int, nbytes: int) -> int:
        """Femtoseconds of a collective, over the slowest link of the axes it spans.

        Args:
            kind: all_reduce, reduce_scatter, all_gather or send.
            axes: their names.
            ranks: that meet.
            nbytes: that each rank brings.
        """
        links = [dict(self.by_axis).get(axis, self.link) for axis in axes]
        sent, rate = over_link(kind, ranks, nbytes), min(link.rate for link in links)
        return max(link.start for link in links) + sent * 10**15 // rate

    def to_json(self) -> str:
        """As text that ``from_json`` reads."""
        return json.dumps(self.__dict__)

    @staticmethod
    def from_json(text: str) -> CostTable:
        """From the text of ``to_json``."""
        read = json.loads(text)
        by_axis = tuple((axis, Link(*link)) for axis, link in read["by_axis"])
        return CostTable(Link(*read["link"]), by_axis, read["kernel"], read["memory"])

    def moved(self, nbytes: int) -> int:
        """Femtoseconds of reading and writing so many bytes of local memory."""
        return nbytes * 10**15 // self.memory


CPU = CostTable(LINKS["gloo"], kernel=5 * MICROSECOND, memory=20 * GB)
"""Ranks as processes on a host's cores."""
CUDA = CostTable()
"""GPUs of one host."""


def default_costs(device: str) -> CostTable:
    """What links and memory of such devices usually give.

    Args:
        device: kind, ``cpu`` or ``cuda``.
    """
    return CUDA if device == "cuda" else CPU


TABLES = {
    "nvlink": CUDA,
    "pcie": CostTable(LINKS["pcie"]),
    "ethernet": CostTable(LINKS["ethernet"]),
    "gloo": CPU,
}
"""By the name of the link between all ranks: GPUs, but for ``gloo``."""
