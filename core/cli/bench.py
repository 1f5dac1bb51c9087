"""bench: speed, load time and peak memory, ours beside those of transformers."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..context import BuildContext
from ..parallel import Topology
from ..runtime import build
from ..runtime.checkpoint import Checkpoint, local_path
from ..runtime.reading import Overrides
from .console import Screen
from .measuring import Figure, Measuring, Plan

__all__ = ["Options", "Overrides", "run"]

PROMPT_TOKENS = 512
"""Prompt of the prefill when nobody says; shorter where the context is."""


@dataclass(frozen=True)
class Options:
    """What to measure, and how to show it.

    Args:
        path: checkpoint.
        dtypes: each is measured on its own; none for the checkpoint's.
        batches: numbers of sequences that decode together.
        prompt_tokens: prompt of the prefill; None for 512, or what the context holds.
        decode_tokens: decode steps timed.
        rounds: measurements of each time.
        reference: measure transformers as well.
        as_json: print JSON.
        overrides: of the checkpoint's config.
        offline: never ask the hub.
    """

    path: str
    dtypes: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1, 8)
    prompt_tokens: int | None = None
    decode_tokens: int = 64
    rounds: int = 5
    reference: bool = True
    as_json: bool = False
    overrides: Overrides = Overrides()
    offline: bool = False


def run(options: Options, screen: Screen) -> None:
    """Measure and show.

    Raises:
        ArchzooError: something cannot be loaded or run.
    """
    path = local_path(options.path, options.offline)
    plan = _plan(options, path)
    figures: list[Figure] = []
    with screen.busy("Measuring") as doing:
        for dtype in options.dtypes or (None,):
            measuring = Measuring(
                path, dtype, plan, lambda text: doing(f"Measuring: {text}"), options.overrides
            )
            figures += measuring.figures()
    if options.as_json:
        content = _facts(path, plan) | {"figures": [each.as_dict() for each in figures]}
        screen.write(json.dumps(content, indent=2) + "\n")
    else:
        screen.show(_table(path, plan, figures))


def _plan(options: Options, path: Path) -> Plan:
    """What is measured, in the model's context; found out before weights are read."""
    with closing(Checkpoint(path)) as checkpoint:
        ctx = BuildContext.of(Topology(), device="meta")
        shell = build(checkpoint.raw, ctx, **asdict(options.overrides))
    context = shell.config.max_position_embeddings
    fits = max(1, min(PROMPT_TOKENS, context - 2))
    return Plan(
        batches=options.batches,
        prompt_tokens=fits if options.prompt_tokens is None else options.prompt_tokens,
        decode_tokens=options.decode_tokens,
        rounds=options.rounds,
        reference=options.reference,
    ).within(context)


def _facts(path: Path, plan: Plan) -> dict[str, Any]:
    """What the figures depend on."""
    import transformers

    return {
        "path": str(path),
        "archzoo": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        **asdict(plan),
    }


def _table(path: Path, plan: Plan, figures: list[Figure]) -> Table:
    facts = _facts(path, plan)
    threads = f"{facts['threads']} thread{'' if facts['threads'] == 1 else 's'}"
    table = Table(
        title=path.name,
        title_justify="left",
        title_style="bold",
        caption=(
            f"medians of {plan.rounds} rounds, {threads}\n"
            f"decode: {plan.decode_tokens} tokens after prompts of {plan.decode_prompt_tokens}\n"
            "ratio: median of each round's, above 1 in archzoo's favour\n"
            "load call: transformers only maps the file; archzoo reads it, packing comes later\n"
            "values checked: the load call, over one that looks for no NaN and infinity\n"
            "start to first token: a fresh process, imports and reading included\n"
            f"archzoo {__version__}, transformers {facts['transformers']} "
            f"(sdpa), torch {facts['torch']}"
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("dtype")
    table.add_column("measure")
    for heading in ("archzoo", "transformers"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("ratio", justify="right")
    for at, each in enumerate(figures):
        again = at > 0 and figures[at - 1].dtype == each.dtype
        if at and not again:
            table.add_section()
        table.add_row(
            "" if again else each.dtype,
            each.name,
            _number(each.ours),
            _number(each.theirs),
            each.unit,
            _ratio(each.ratio),
        )
    return table


def _number(values: list[float]) -> str:
    """Three digits that say something, or a dash where nothing was measured."""
    if not values:
        return "-"
    value = median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-")
    return Text(f"{ratio:.2f} x", style="green" if ratio >= 1 else "yellow")
