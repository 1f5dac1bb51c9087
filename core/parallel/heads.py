"""HeadLayout: the one place where head arithmetic is done.

The QKV linear, attention, the KV pool, KV scales and preflight all ask here, so they cannot
disagree about which heads a rank holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ShapeError
from .group import Group


@dataclass(frozen=True)
class HeadLayout:
    """Which query and KV heads one rank holds.

    Query heads are split evenly over ``group``. KV heads are split evenly over ``kv_group``
    while there are enough of them; with more ranks than KV heads, neighbouring ranks hold copies
    of one head (rank // replicas), because their query heads attend to the same KV head. A rank
    holds exactly the KV heads that its query heads attend to.

    Args:
        total_num_heads: query heads, all ranks together.
        total_num_kv_heads: KV heads, all ranks together.
        group: ranks that split the query heads.
        kv_group: ranks that split the KV heads; the same as group unless said otherwise.
        where: module path for messages.

    Raises:
        ShapeError: heads cannot be split or replicated evenly, or the two groups give a rank
            query heads and other KV heads than those need.
    """

    total_num_heads: int
    total_num_kv_heads: int
    group: Group
    kv_group: Group
    where: str = ""

    @staticmethod
    def of(
        total_num_heads: int,
        total_num_kv_heads: int,
        group: Group,
        kv_group: Group | None = None,
        where: str = "",
    ) -> HeadLayout:
        """The layout, with KV heads over the same group unless another is given."""
        return HeadLayout(
            total_num_heads,
            total_num_kv_heads,
            group,
            group if kv_group is None else kv_group,
            where,
        )

    def __post_init__(self) -> None:
        """Refuse counts that cannot be laid out and groups that do not go together."""
        at = f"{self.where}: " if self.where else ""
        self._check_counts(at)
        self._check_pairing(at)

    def _check_counts(self, at: str) -> None:
        heads, kv = self.total_num_heads, self.total_num_kv_heads
        if heads < 1 or kv < 1 or heads % kv:
            raise ShapeError(
                f"{at}num_attention_heads={heads} is not a positive multiple of "
                f"num_key_value_heads={kv}; correct the config"
            )
        if heads % self.group.size:
            raise ShapeError(
                f"{at}{heads} query heads (num_attention_heads) cannot be split over "
                f"{self.group.name}={self.group.size} ranks; use a size that divides {heads}"
            )
        ranks = self.kv_group.size
        if kv % ranks and ranks % kv:
            raise ShapeError(
                f"{at}{kv} KV heads (num_key_value_heads) cannot be split over or replicated on "
                f"{self.kv_group.name}={ranks} ranks ({heads} query heads); use a size that divides "
                f"{kv} or is a multiple of it"
            )

    def _check_pairing(self, at: str) -> None:
        """Attention pairs local query heads with local KV heads by their order alone."""
        ratio = self.total_num_heads // self.total_num_kv_heads
        last = self.first_head + self.num_heads - 1
        needed = range(self.first_head // ratio, last // ratio + 1)
        held = range(self.first_kv_head, self.first_kv_head + self.num_kv_heads)
        if needed != held:
            queries, kv = self.group, self.kv_group
            raise ShapeError(
                f"{at}rank {queries.rank} of {queries.name}={queries.size} holds query heads "
                f"{self.first_head} to {last}, which need KV heads {list(needed)}, but rank "
                f"{kv.rank} of {kv.name}={kv.size} holds KV heads {list(held)} "
                f"({self.total_num_heads} query heads, {self.total_num_kv_heads} KV heads); split "
                f"KV heads over {queries.name} too, or over a group that gives each rank the KV "
                "heads its query heads need"
            )

    @property
    def num_heads(self) -> int:
        """Query heads on this rank."""
        return self.total_num_heads // self.group.size

    @property
    def num_kv_heads(self) -> int:
        """KV heads on this rank, copies included."""
        return max(1, self.total_num_kv_heads // self.kv_group.size)

    @property
    def num_kv_head_replicas(self) -> int:
        """Ranks that hold a copy of each KV head."""
        return max(1, self.kv_group.size // self.total_num_kv_heads)

    @property
    def first_head(self) -> int:
        """Global number of this rank's first query head."""
        return self.group.rank * self.num_heads

    @property
    def first_kv_head(self) -> int:
        """Global number of this rank's first KV head."""
        return self.kv_group.rank // self.num_kv_head_replicas * self.num_kv_heads


def divide(total: int, group: Group, what: str, where: str = "") -> int:
    """total / group.size, with a message that names both when it is not whole.

    Raises:
        ShapeError: the size does not divide.
    """
    if total % group.size:
        at = f"{where}: " if where else ""
        raise ShapeError(
            f"{at}{what}={total} cannot be split over {group.name}={group.size} ranks; "
            f"use a size that divides {total}"
        )
    return total // group.size
