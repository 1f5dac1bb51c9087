"""Stacks of every style that the boundary tests share."""

from __future__ import annotations

from dataclasses import replace

from archzoo.planning.facts import (
    HANDOFF,
    Branch,
    StageFacts,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_moe,
    declare_own,
    declare_parallel,
)


def _layer(**facts: object) -> tuple[StageFacts, ...]:
    return declare_attn(**facts), declare_ffn(**facts)  # type: ignore[arg-type]  # any subset


ANY_ROWS = Branch("mlp", ("all", "attn", "slice"), "none")
LAYERS: dict[str, tuple[StageFacts, ...]] = {
    "pre": _layer(),
    "sandwich": _layer(post=True),
    "post": _layer(read="plain", post=True),
    "bert": _layer(read="replace"),
    "parallel": (declare_parallel(declare_attn(), declare_ffn()),),
    "parallel_two_norms": (
        declare_parallel(declare_attn(post=True), declare_ffn(), shared_norm=False),
    ),
    "ffn_attn_tp": (declare_attn(), declare_ffn(group="attn_tp", rows=("attn", "all"))),
    "replicated": (declare_attn(), StageFacts("mlp", (ANY_ROWS,))),
    "experts": (declare_attn(), declare_ffn(sparse=True, rows=("slice",), group="none")),
    "moe": (declare_attn(), declare_moe()),
    "own": (declare_own("own"), declare_ffn()),
}
HEADS = {
    "tp": declare_head(),
    "dp": declare_head(rows="attn"),
    "all_rows": declare_head(selects=False),
}


def stack(
    style: str, layers: int = 2, head: str = "tp", capture: bool = False, handoff: bool = False
) -> tuple[StageFacts, ...]:
    """Layers of one style, then a head; the hand-off comes in the middle."""
    stages = LAYERS[style] * layers
    if handoff:
        half = len(stages) // 2
        stages = (*stages[:half], HANDOFF, *stages[half:])
    stages = (*stages, HEADS[head])
    if capture:
        stages = tuple(
            stage if stage.kind == "handoff" else replace(stage, capture=True) for stage in stages
        )
    return stages
