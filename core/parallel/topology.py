"""Topology: which ranks there are and how they group. Pure data, no process group needed.

Ranks are numbered stage by stage, then attention-DP group by group::

    rank    = pp_rank * tp + tp_rank
    tp_rank = attn_dp_rank * attn_tp + attn_tp_rank          attn_tp = tp / attn_dp
            = ep_rank * moe_tp + moe_tp_rank                 moe_tp = tp / ep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import TopologyError

GROUP_NAMES = ("world", "pp", "tp", "attn_tp", "attn_dp", "ep", "moe_tp", "moe", "none")
"""Groups a layer can name; ``none`` is this rank alone. ``moe`` are the ranks over which the output
of experts is partial: all of the stage, or with ``ep`` this attention group (see ``layers.moe``)."""


@dataclass(frozen=True)
class Topology:
    """Sizes of all parallel axes and one rank's place in them.

    Args:
        tp: tensor-parallel ranks of one pipeline stage.
        pp: pipeline stages.
        attn_dp: data-parallel attention groups inside a stage; divides tp.
        ep: parts that the experts of a stage are dealt to; divides tp. The tp / ep ranks of a part
            split each of its experts.
        rank: this rank, 0 <= rank < world_size.
        pp_layers: layers of each pipeline stage; None splits them evenly (``split_layers``).

    Raises:
        TopologyError: a size below 1, sizes that do not divide, a rank outside the world, or
            pp_layers for another number of stages.
    """

    tp: int = 1
    pp: int = 1
    attn_dp: int = 1
    ep: int = 1
    rank: int = 0
    pp_layers: Sequence[int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit together."""
        for name in ("tp", "pp", "attn_dp", "ep", "rank"):
            _check_size(name, getattr(self, name), 0 if name == "rank" else 1)
        self._check_pp_layers()
        for name in ("attn_dp", "ep"):
            part = getattr(self, name)
            if self.tp % part:
                raise TopologyError(
                    f"{name}={part} does not divide tp={self.tp}; "
                    f"choose {name} among the divisors of tp"
                )
        if self.rank >= self.world_size:
            raise TopologyError(
                f"rank {self.rank} is outside a world of {self.world_size} "
                f"(tp={self.tp} x pp={self.pp})"
            )

    def _check_pp_layers(self) -> None:
        if self.pp_layers is None:
            return
        try:
            sizes = tuple(self.pp_layers)
        except TypeError:
            raise TopologyError(
                f"pp_layers={self.pp_layers!r} must be a list of sizes, one for each pipeline stage"
            ) from None
        for size in sizes:
            _check_size("each of pp_layers", size, 1)
        # A caller's list becomes a tuple: topologies are compared and hashed.
        object.__setattr__(self, "pp_layers", sizes)
        if len(sizes) != self.pp:
            raise TopologyError(
                f"pp_layers={sizes} is for {len(sizes)} pipeline stages, "
                f"pp={self.pp}; give one number for each stage"
            )

    @property
    def world_size(self) -> int:
        """Ranks, all stages together."""
        return self.tp * self.pp

    @property
    def attn_tp(self) -> int:
        """Ranks that share one attention: tp / attn_dp."""
        return self.tp // self.attn_dp

    @property
    def pp_rank(self) -> int:
        """This rank's pipeline stage."""
        return self.rank // self.tp

    @property
    def tp_rank(self) -> int:
        """This rank's place in its stage."""
        return self.rank % self.tp

    @property
    def attn_dp_rank(self) -> int:
        """Which attention-DP group this rank is in."""
        return self.tp_rank // self.attn_tp

    @property
    def attn_tp_rank(self) -> int:
        """This rank's place in its attention group."""
        return self.tp_rank % self.attn_tp

    @property
    def moe_tp(self) -> int:
        """Ranks that split one expert: tp / ep."""
        return self.tp // self.ep

    def at(self, rank: int) -> Topology:
        """The same sizes seen from another rank."""
        return replace(self, rank=rank)

    def ranks_of(self, group: str) -> tuple[int, ...]:
        """Global ranks of the named group this rank belongs to, in group order.

        Raises:
            TopologyError: no such group.
        """
        first = self.pp_rank * self.tp
        match group:
            case "world":
                return tuple(range(self.world_size))
            case "none":
                return (self.rank,)
            case "tp":
                return tuple(range(first, first + self.tp))
            case "pp":
                return tuple(range(self.tp_rank, self.world_size, self.tp))
            case "attn_tp":
                start = first + self.attn_dp_rank * self.attn_tp
                return tuple(range(start, start + self.attn_tp))
            case "attn_dp":
                start = first + self.attn_tp_rank
                return tuple(range(start, first + self.tp, self.attn_tp))
            case "moe_tp":
                start = first + self.tp_rank // self.moe_tp * self.moe_tp
                return tuple(range(start, start + self.moe_tp))
            case "ep":
                start = first + self.tp_rank % self.moe_tp
                return tuple(range(start, first + self.tp, self.moe_tp))
            case "moe":
                return self.ranks_of("tp" if self.ep == 1 else "attn_tp")
        raise TopologyError(f"no group {group!r}; groups are {', '.join(GROUP_NAMES)}")


_MOST = 2**31 - 1
"""Ranks and layers that can be counted: torch.distributed's ranks are int32."""


def _check_size(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TopologyError(f"{name}={value!r} must be an integer >= {least}")
    if value > _MOST:
        raise TopologyError(f"{name}={value} must be an integer in {least}…{_MOST}")
