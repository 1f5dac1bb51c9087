"""HeadShare: the attention heads of one rank, as its layers were built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from ..parallel import HeadLayout


@dataclass(frozen=True)
class HeadShare:
    """Heads that a rank holds in so many of its layers.

    Args:
        layers: layers that have these.
        heads: global numbers of its query heads.
        kv_heads: global numbers of its KV heads.
        replicas: ranks that hold a copy of each of them.
    """

    layers: int
    heads: range
    kv_heads: range
    replicas: int


def heads_of(module: nn.Module) -> tuple[HeadShare, ...]:
    """What the layers of a rank hold; one entry where all are alike."""
    found: Counter[tuple[range, range, int]] = Counter()
    for layer in module.modules():
        layout = getattr(layer, "heads", None)
        if isinstance(layout, HeadLayout):
            found[_key(layout)] += 1
    return tuple(HeadShare(count, *key) for key, count in found.items())


def holders(shares: Iterable[tuple[int, HeadShare]]) -> Mapping[int, tuple[int, ...]]:
    """KV head -> the ranks that hold it.

    Args:
        shares: (rank, what it holds) of ranks that share layers.
    """
    found: dict[int, list[int]] = {}
    for rank, share in shares:
        for head in share.kv_heads:
            found.setdefault(head, []).append(rank)
    return {head: tuple(ranks) for head, ranks in sorted(found.items())}


def _key(layout: HeadLayout) -> tuple[range, range, int]:
    queries = range(layout.first_head, layout.first_head + layout.num_heads)
    kv = range(layout.first_kv_head, layout.first_kv_head + layout.num_kv_heads)
    return queries, kv, layout.num_kv_head_replicas
