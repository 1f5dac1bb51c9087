"""preflight: whether a checkpoint fills every rank of a topology, and what ranks hold; from headers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..parallel import Topology
from ..runtime.reading import Overrides
from ..survey import PreflightReport, preflight
from . import layout
from .console import Screen
from .survey_record import as_record, explanation_record, skips_record

__all__ = ["Options", "Overrides", "Topology", "run"]


@dataclass(frozen=True)
class Options:
    """What to tell.

    Args:
        path: checkpoint, whole or its headers.
        topology: to plan for.
        dtype: of weights and activations; None for the checkpoint's.
        dp_lm_head: split the head's vocabulary over each attention group.
        batch: requests at once.
        chunk: rows of the largest forward in each attention group; None for the engine's own.
        context: tokens of each request; None for what the model is made for.
        memory: bytes of a rank.
        explain: a tensor or parameter to follow.
        explain_skips: list what is left out, and why.
        overrides: of the checkpoint's config.
        as_json: print JSON.
        quantization: ``none`` takes the weights as plain ones, whatever the config says.
    """

    path: str
    topology: Topology = Topology()
    dtype: str | None = None
    dp_lm_head: bool = False
    batch: int = 1
    chunk: int | None = None
    context: int | None = None
    memory: int | None = None
    explain: str | None = None
    explain_skips: bool = False
    overrides: Overrides = Overrides()
    as_json: bool = False
    quantization: str | None = None


def run(options: Options, screen: Screen) -> bool:
    """Plan and show; whether the checkpoint fills the model, and fits where a memory was given.

    Raises:
        ArchzooError: what can be neither read nor served, and a name to explain that nothing has.
    """
    with screen.busy("Planning"):
        report = examine(options)
    shown, good = (_as_json if options.as_json else _as_text)(report, options)
    screen.write(shown + "\n")
    return good


def examine(options: Options) -> PreflightReport:
    """The report on what was asked.

    Raises:
        ArchzooError: as ``run``.
    """
    return preflight(
        options.path,
        dtype=options.dtype,
        topology=options.topology,
        dp_lm_head=options.dp_lm_head,
        batch=options.batch,
        chunk=options.chunk,
        context=options.context,
        memory=options.memory,
        quantization=options.quantization,
        **asdict(options.overrides),
    )


def _as_text(report: PreflightReport, options: Options) -> tuple[str, bool]:
    from .survey_text import as_text, explanation_text

    columns = layout.width()
    if options.explain is not None:
        found = report.explain(options.explain)
        return explanation_text(found, columns), not found.faults
    if options.explain_skips:
        return report.explain_skips(), report.ok
    return as_text(report, columns), _good(report)


def _as_json(report: PreflightReport, options: Options) -> tuple[str, bool]:
    if options.explain is not None:
        found = report.explain(options.explain)
        return json.dumps(explanation_record(found), indent=2), not found.faults
    if options.explain_skips:
        return json.dumps(skips_record(report), indent=2), report.ok
    return json.dumps(as_record(report), indent=2), _good(report)


def _good(report: PreflightReport) -> bool:
    return report.ok and report.fits is not False
