"""The screen of ``preflight``: what was planned for, then a table for each batch."""

from __future__ import annotations

from collections.abc import Iterator

from ..parallel.links import GB, MICROSECOND, TABLES
from ..parallel.rows import GroupRows
from . import layout
from .boundary_table import Line, Section
from .preflight import Planned, Report
from .topologies import topology_text

_LEGEND = (
    "STEP: over each axis, attn_dp before attn_tp, rows are Split, Replicated or Partial sums. "
    "ROWS and BYTES: of the rank that holds most; bytes are what it puts in. RUNNER-UP: what the "
    "whole stack would cost more with other placements around this stage. Totals are over all "
    "stages, with reading and writing the rows they compute on. Link costs are a default table, "
    "not measured here."
)


def as_text(report: Report, columns: int) -> str:
    """The whole report.

    Args:
        report: what was planned.
        columns: width of the page.
    """
    blocks = [list(layout.fields(_heading(report), columns))]
    for planned in report.batches:
        blocks.append(list(layout.fields(_totals(planned), columns)))
        blocks.append(_table(planned, columns))
    blocks.append(layout.wrapped(_LEGEND, columns))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _heading(report: Report) -> Iterator[tuple[str, str]]:
    options, config = report.options, report.config
    dtype = str(report.dtype).removeprefix("torch.")
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {dtype}"
    yield "checkpoint", options.path
    yield "model", f"{report.architecture}, {size}"
    head = ", head split over attn_tp" if options.dp_lm_head else ""
    yield "topology", f"{topology_text(options.topology)}{head}"
    link = TABLES[options.link].link
    yield "links", f"{options.link}, {link.start / MICROSECOND:g} µs and {link.rate / GB:g} GB/s"
    yield "digest", f"{report.digest}, which ranks compare before they load"


def _totals(planned: Planned) -> Iterator[tuple[str, str]]:
    rows, plan, other = planned.rows, planned.plan, planned.other
    most = plan.costs.sizes.rows[plan.rules.axes.attn_depth]
    yield "batch", f"{_counted(rows)}; planned for up to {most} in a group"
    yield "plan", f"{plan.mode}, {_total(plan.cost, planned.nbytes)}"
    yield "beside", f"{other.mode}, {_total(other.cost, planned.other_bytes)}"


def _counted(rows: GroupRows) -> str:
    """``5 rows, 3 + 2 in attention groups, padded to 4 + 4``."""
    total = sum(rows.counts)
    text = f"{total} row{'' if total == 1 else 's'}"
    if len(rows.counts) > 1:
        text += f", {' + '.join(map(str, rows.counts))} in attention groups"
    if rows.held != rows.counts:
        text += f", padded to {' + '.join(map(str, rows.held))}"
    return text


def _total(cost: int, nbytes: int) -> str:
    return f"{cost / MICROSECOND:,.1f} µs and {layout.size(nbytes)} a rank"


def _table(planned: Planned, columns: int) -> list[str]:
    headings = ("STEP", "ROWS", "GROUP", "BYTES", "µs", "RUNNER-UP")
    rows = [row for section in planned.sections for row in _rows(section)]
    return layout.aligned(headings, rows, columns, right=(1, 3, 4, 5))


def _rows(section: Section) -> Iterator[tuple[str, ...]]:
    """The stage with its runner-up, then its steps."""
    extra = "" if section.runner_up is None else f"+{section.runner_up:,.1f}"
    yield _stages(section), "", "", "", "", extra
    yield from (_cells(line) for line in section.lines)


def _cells(line: Line) -> tuple[str, ...]:
    nbytes = layout.size(line.nbytes) if line.group else ""
    return f"  {line.step}", str(line.rows), line.group, nbytes, f"{line.us:,.1f}", ""


def _stages(section: Section) -> str:
    """``2, 4 … 158 attn``."""
    at = section.at
    numbers = ", ".join(map(str, at)) if len(at) < 3 else f"{at[0]}, {at[1]} … {at[-1]}"
    return f"{numbers} {section.name}"
