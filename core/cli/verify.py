"""verify: our layers beside those of transformers, on the same checkpoint and prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from ..context import BuildContext
from ..errors import InputError
from ..parallel import Topology
from ..parallel.launch import process_count, shutdown
from ..planning.plan import Mode
from ..runtime import build, load
from ..runtime.checkpoint import Checkpoint, local_path, require_tokenizer
from ..runtime.request import check_prompt
from .comparison import TOLERANCES, Comparison, StageError, compare
from .console import Screen
from .reference import reference_model
from .trace import Trace, our_trace, reference_trace

__all__ = ["Options", "Topology", "run"]

LENGTH = 64
"""Tokens of a random prompt when nobody says; fewer where the context holds fewer."""

_CAPTION = "relative: rms error of a row over its rms, the worst row; rms: of the reference"


@dataclass(frozen=True)
class Options:
    """What to verify.

    Args:
        path: checkpoint.
        topologies: to check, one after the other.
        plan: how collectives between stages are chosen.
        dp_lm_head: split the head's vocabulary over each attention group.
        dtype: of both models.
        prompt: text or token ids; None for random ids.
        length: tokens of a random prompt; None for 64, or what the context holds.
        seed: of the random prompt.
        tolerance: largest error that agrees; None for the dtype's own.
        offline: never ask the hub.
    """

    path: str
    topologies: tuple[Topology, ...] = (Topology(),)
    plan: Mode = "cheapest"
    dp_lm_head: bool = False
    dtype: str = "float32"
    prompt: str | Sequence[int] | None = None
    length: int | None = None
    seed: int = 0
    tolerance: float | None = None
    offline: bool = False


def run(options: Options, screen: Screen) -> bool:
    """Compare and show; whether everything agrees.

    Raises:
        ArchzooError: something cannot be loaded, or there is nothing to compare with.
    """
    path = local_path(options.path, options.offline)
    dtype: torch.dtype = getattr(torch, options.dtype)
    tolerance = TOLERANCES[dtype] if options.tolerance is None else options.tolerance
    try:
        with screen.busy("Reading the configuration") as doing:
            ids = _prepare(path, options)
            doing("Running transformers")
            theirs = reference_trace(reference_model(path, dtype), ids)
        results: dict[str, Comparison] = {}
        for topology in options.topologies:
            name = _name(topology)
            with screen.busy(f"Running archzoo, {name}"):
                results[name] = compare(_our_trace(path, options, topology, ids), theirs, tolerance)
            tokens = f"{len(ids)} token{'' if len(ids) == 1 else 's'}"
            screen.show(_table(results[name], f"{name}, {options.dtype}, {tokens}"))
    finally:
        shutdown()
    for name, result in results.items():
        screen.say(_verdict(name, result, tolerance))
    return all(result.first_departure is None for result in results.values())


def _prepare(path: Path, options: Options) -> list[int]:
    """The prompt; and refuse what we could not run, before transformers is started."""
    prompt = options.prompt
    for topology in options.topologies:
        _check_local(topology)
    if isinstance(prompt, str):
        require_tokenizer(path)
    with closing(Checkpoint(path)) as checkpoint:
        shells = [
            build(
                checkpoint.raw,
                BuildContext.of(topology, device="meta", dp_lm_head=options.dp_lm_head),
            )
            for topology in options.topologies
        ]
        size, context = shells[0].config.vocab_size, shells[0].config.max_position_embeddings
        if isinstance(prompt, str):
            prompt = checkpoint.tokenizer.encode(prompt)
    if prompt is None:
        length = min(LENGTH, context) if options.length is None else options.length
        _check_length(length, context)
        generator = torch.Generator().manual_seed(options.seed)
        numbers: list[int] = torch.randint(size, (length,), generator=generator).tolist()
        return numbers
    ids = check_prompt(prompt, size)
    _check_length(len(ids), context)
    return ids


def _check_length(length: int, context: int) -> None:
    if length > context:
        raise InputError(
            f"the prompt has {length} tokens, more than the context of {context}; shorten it"
        )


def _check_local(topology: Topology) -> None:
    """Refuse layers or rows that are in other processes, where nobody here sees them."""
    for option, size in (("--pp", topology.pp), ("--attn-dp", topology.attn_dp)):
        if size > 1 and process_count() > 1:
            raise InputError(
                f"{option} {size} under torchrun: what other processes hold cannot be compared "
                "here; run verify without torchrun, which simulates all ranks"
            )


def _our_trace(path: Path, options: Options, topology: Topology, ids: Sequence[int]) -> Trace:
    model = load(
        path,
        dtype=options.dtype,
        topology=topology,
        plan=options.plan,
        dp_lm_head=options.dp_lm_head,
        kv_slots=len(ids),
        max_requests=1,
        pp_micro_batches=1,
        check_values=True,
    )
    return our_trace(model, ids)


def _name(topology: Topology) -> str:
    """``tp 3``, ``tp 4 pp 2 attn_dp 2``."""
    sizes = {"pp": topology.pp, "attn_dp": topology.attn_dp}
    more = "".join(f" {name} {size}" for name, size in sizes.items() if size > 1)
    return f"tp {topology.tp}{more}"


def _table(result: Comparison, title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=_CAPTION,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("stage")
    for heading in ("largest error", "relative", "rms"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    departed = False
    for each in result.stages:
        first = not each.agrees and not departed
        departed = departed or first
        table.add_row(
            each.stage,
            f"{each.largest:.1e}",
            f"{each.relative:.1e}",
            f"{each.rms:.3g}",
            _mark(each, first),
        )
    return table


def _mark(each: StageError, first: bool) -> Text:
    if each.agrees:
        return Text("agrees", style="green")
    return Text("departs first" if first else "departs", style="bold red" if first else "red")


def _verdict(name: str, result: Comparison, tolerance: float) -> Text:
    """One topology in one line."""
    first, last = result.first_departure, result.stages[-1]
    same = result.same_choice
    tail = "" if same is None else f", same likeliest token in {same[0]} of {same[1]} rows"
    largest = f"largest error of the {last.stage} {last.largest:.1e}{tail}"
    if first is None:
        text = f"{name}: agrees within {tolerance:g}; {largest}"
        return Text(text, style="green")
    text = (
        f"{name}: departs at {first.stage} (relative {first.relative:.1e}, largest "
        f"{first.largest:.1e}, tolerance {tolerance:g}); {largest}"
    )
    return Text(text, style="red")
