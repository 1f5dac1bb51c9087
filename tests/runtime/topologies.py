"""The cases of the topology sweep: every topology with every model it fits, options pairwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import Any

from runtime.pipelines import HEADS

from archzoo.parallel.links import CostTable, Link

BYTES_ONLY = CostTable(Link(1, 10**9), kernel=0, memory=10**15)
"""Starting is free, so plans cut rows wherever that moves fewer bytes (sequence parallel)."""

PLANS: dict[str, dict[str, Any]] = {
    "cheapest": {},
    "sliced": {"costs": BYTES_ONLY},
    "naive": {"plan": "naive"},
}
UNEVEN = {2: (1, 6), 3: (1, 5, 1), 5: (3, 1, 1, 1, 1)}
SIZES = tuple(
    (tp, pp, attn_dp)
    for tp, attn_dp, pp in product((1, 2, 3, 4, 8), (1, 2, 4), (1, 2, 3, 5))
    if tp % attn_dp == 0
)
"""All tp, pp, attn_dp of the sweep."""


@dataclass(frozen=True)
class Case:
    """One model on one topology in one way.

    Args:
        variant: key of VARIANTS.
        tp, pp, attn_dp: sizes.
        plan: key of PLANS.
        dp_lm_head, pp_micro_batches: as in ``load``.
        uneven: layers of the pipeline stages as in UNEVEN.
    """

    variant: str
    tp: int
    pp: int
    attn_dp: int
    plan: str
    dp_lm_head: bool
    pp_micro_batches: int | None
    uneven: bool

    def __str__(self) -> str:
        """``tied-tp3-pp2-dp1``: unique, as options differ with the model and the sizes."""
        return f"{self.variant}-tp{self.tp}-pp{self.pp}-dp{self.attn_dp}"

    @property
    def options(self) -> dict[str, Any]:
        """For ``load``."""
        chosen = {name: getattr(self, name) for name in ("tp", "pp", "attn_dp", "dp_lm_head")}
        layers = UNEVEN[self.pp] if self.uneven else None
        chosen |= {"pp_layers": layers, "pp_micro_batches": self.pp_micro_batches}
        return chosen | PLANS[self.plan]

    @property
    def pairs(self) -> set[tuple[tuple[str, Any], ...]]:
        """Every two of its values."""
        return set(combinations(asdict(self).items(), 2))


def fits(variant: str, attn_tp: int) -> bool:
    """Whether query and KV heads can be dealt out."""
    heads, kv_heads = HEADS[variant]
    return heads % attn_tp == 0 and (kv_heads % attn_tp == 0 or attn_tp % kv_heads == 0)


def possible() -> Iterator[Case]:
    """For every topology and every model that fits it, all options there are."""
    for (tp, pp, attn_dp), variant in product(SIZES, HEADS):
        if fits(variant, tp // attn_dp):
            for options in product(
                PLANS,
                (False, True) if attn_dp > 1 else (False,),
                (None, 2, 5) if pp > 1 else (None,),
                (False, True) if pp > 1 else (False,),
            ):
                yield Case(variant, tp, pp, attn_dp, *options)


def sweep() -> list[Case]:
    """A case of every topology, and more until all values that can meet have met."""
    chosen: list[Case] = []
    cases = list(possible())
    left = set[Any]().union(*(case.pairs for case in cases))
    used: Counter[Any] = Counter()

    def take(some: Iterable[Case]) -> None:
        best = min(some, key=lambda case: (-len(case.pairs & left), _used(case, used)))
        left.difference_update(best.pairs)
        used.update((best.pp, best.attn_dp, pair) for pair in best.pairs)
        chosen.append(best)

    for size in SIZES:
        take(case for case in cases if (case.tp, case.pp, case.attn_dp) == size)
    while left:
        names = set(map(str, chosen))
        take(case for case in cases if str(case) not in names)
    return chosen


def _used(case: Case, used: Counter[Any]) -> int:
    """How often its pairs were taken where the same options were open."""
    return sum(used[case.pp, case.attn_dp, pair] for pair in case.pairs)
