"""What verify shows: a table of stages, a verdict in one line, and tensors that have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from .comparison import Comparison, StageError
from .fingerprints import Change

_SHOWN = 8
"""Changed tensors that are listed; a checkpoint of another number format has changed them all."""
_CAPTION = "relative: rms error of a row over its rms, the worst row; rms: of the reference"


def comparison_table(result: Comparison, title: str) -> Table:
    """Every stage with its errors; the first that departs is marked."""
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


def verdict(name: str, result: Comparison, tolerance: float) -> Text:
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


def change_lines(changes: Sequence[Change]) -> Iterator[Text]:
    """Why a checkpoint departs from its recording, as far as its tensors show."""
    if not changes:
        yield Text("every tensor of the checkpoint is as recorded; the code computes otherwise")
    for change in changes[:_SHOWN]:
        yield Text(str(change), style="red")
    if changes[_SHOWN:]:
        yield Text(f"and {len(changes) - _SHOWN} more tensors that are not as recorded")
