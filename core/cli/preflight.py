"""preflight: what a checkpoint would do on a topology, told from its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import ModelConfig, read_config
from ..config.quantization import without_quantization
from ..context import BuildContext
from ..models import DecoderBase, name_map
from ..parallel import Topology
from ..parallel.links import MICROSECOND, TABLES
from ..parallel.rows import GroupRows
from ..planning.buckets import PlanBook
from ..planning.plan import Mode, Plan, digest
from ..planning.planner import Search
from ..quantization import quant_config
from ..runtime.checkpoint import Checkpoint, local_path
from ..runtime.options import check_dtype, check_experts, check_quantization, dtype_for
from ..runtime.reading import Overrides
from . import layout
from .boundary_table import Section, sections, sent_bytes
from .console import Screen
from .question import is_gguf, stating_file
from .records import Record
from .topologies import topology_record

__all__ = ["Options", "Overrides", "Topology", "examine", "run"]


@dataclass(frozen=True)
class Options:
    """What to plan.

    Args:
        path: checkpoint, or its config.json.
        topology: to plan for.
        rows: of each batch to plan, all attention groups together.
        plan: how collectives are chosen.
        link: between ranks, a name of ``TABLES``.
        dtype: of weights and activations; None for the checkpoint's.
        dp_lm_head: split the head's vocabulary over each attention group.
        overrides: of the checkpoint's config.
        as_json: print JSON.
        offline: never ask the hub.
        quantization: ``none`` takes the weights as plain ones, whatever the config says.
    """

    path: str
    topology: Topology = Topology()
    rows: tuple[int, ...] = (64, 8192)
    plan: Mode = "cheapest"
    link: str = "nvlink"
    dtype: str | None = None
    dp_lm_head: bool = False
    overrides: Overrides = Overrides()
    as_json: bool = False
    offline: bool = False
    quantization: str | None = None


@dataclass(frozen=True)
class Planned:
    """The plan of one batch, and what the other way of choosing would cost.

    Args:
        rows: of every attention group, as the plan wants them laid out.
        plan: that forwards of this size follow.
        sections: its table.
        other: for the same layout, the naive plan beside the cheapest, or the other way round.
        other_bytes: that a rank brings to its collectives.
    """

    rows: GroupRows
    plan: Plan
    sections: tuple[Section, ...]
    other: Plan
    other_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes that a rank brings to all collectives."""
        return sent_bytes(self.sections)


@dataclass(frozen=True)
class Report:
    """Plans of one model on one topology.

    Args:
        options: what was asked.
        architecture: of the model.
        config: its configuration.
        dtype: it would run in.
        digest: of plans of all sizes; ranks compare it before they load.
        batches: a plan for each number of rows asked for.
    """

    options: Options
    architecture: str
    config: ModelConfig
    dtype: torch.dtype
    digest: str
    batches: tuple[Planned, ...]


def run(options: Options, screen: Screen) -> None:
    """Plan and show.

    Raises:
        ArchzooError: the model does not fit the topology, as ``load`` would say it.
    """
    from .preflight_text import as_text

    with screen.busy("Planning"):
        report = examine(options)
    if options.as_json:
        screen.write(json.dumps(as_record(report), indent=2) + "\n")
    else:
        screen.write(as_text(report, layout.width()) + "\n")


def examine(options: Options) -> Report:
    """Plan every batch; reads no weights and allocates none.

    Raises:
        ArchzooError: as ``run``.
    """
    check_quantization(options.quantization)
    raw, file = _raw_config(local_path(options.path, options.offline, weights=False))
    raw = without_quantization(raw) if options.quantization == "none" else raw
    model_class, config = options.overrides.resolve(raw, file)
    check_experts(config, options.topology)
    device = torch.device("cpu" if options.link == "gloo" else "cuda")
    dtype = dtype_for(check_dtype(options.dtype), config, device)
    book = _plan_book(options, model_class, config, dtype)
    batches = tuple(_planned(book, total, options.topology.attn_dp) for total in options.rows)
    return Report(options, model_class.__name__, config, dtype, book.digest, batches)


def _raw_config(path: Path) -> tuple[Mapping[str, Any], str]:
    """A checkpoint's configuration and the file that states it; of a GGUF file the header."""
    file = stating_file(path)
    if not is_gguf(file):
        return read_config(file), str(file)
    with closing(Checkpoint(file)) as checkpoint:
        return checkpoint.raw, checkpoint.config_file


def _plan_book(
    options: Options, model_class: type[DecoderBase], config: ModelConfig, dtype: torch.dtype
) -> PlanBook:
    """Plans as the model has them: shells of all its pipeline stages, without storage, are built.

    So whatever ``load`` refuses is refused here, in the same words, whichever layer it is about.
    """
    topology = options.topology
    shells = [
        model_class(
            config,
            BuildContext.of(
                topology.at(first),
                dtype=dtype,
                device="meta",
                quant=quant_config(config.quantization, name_map(model_class, "hf")),
                plan=options.plan,
                costs=TABLES[options.link],
                dp_lm_head=options.dp_lm_head,
            ),
        )
        for first in range(0, topology.world_size, topology.tp)
    ]
    return shells[0].model.stack.book


def _planned(book: PlanBook, total: int, groups: int) -> Planned:
    share, more = divmod(total, groups)
    counts = tuple(share + (group < more) for group in range(groups))
    rows = book.rows(counts, counts)
    plan = book.of_rows(rows)
    other = book.in_mode("naive" if book.mode == "cheapest" else "cheapest").of_rows(rows)
    return Planned(rows, plan, _table(plan), other, sent_bytes(_table(other)))


def _table(plan: Plan) -> tuple[Section, ...]:
    return tuple(sections(plan, Search(plan.costs, plan.mode).runner_ups(plan)))


def as_record(report: Report) -> Record:
    """Everything, for programs."""
    options, config = report.options, report.config
    return {
        "path": options.path,
        "architecture": report.architecture,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "dtype": str(report.dtype).removeprefix("torch."),
        "topology": topology_record(options.topology),
        "dp_lm_head": options.dp_lm_head,
        "link": options.link,
        "plan": options.plan,
        "digest": report.digest,
        "batches": [_batch_record(each) for each in report.batches],
    }


def _batch_record(planned: Planned) -> Record:
    plan, rows = planned.plan, planned.rows
    return {
        "rows": list(rows.counts),
        "held": list(rows.held),
        "ragged": rows.ragged,
        "digest": digest((plan,)),
        "microseconds": plan.cost / MICROSECOND,
        "bytes": planned.nbytes,
        "other": {
            "plan": planned.other.mode,
            "microseconds": planned.other.cost / MICROSECOND,
            "bytes": planned.other_bytes,
        },
        "stages": [_section_record(each) for each in planned.sections],
    }


def _section_record(section: Section) -> Record:
    return {
        "name": section.name,
        "at": list(section.at),
        "runner_up_microseconds": section.runner_up,
        "steps": [
            {
                "step": line.step,
                "rows": line.rows,
                "group": line.group,
                "bytes": line.nbytes,
                "microseconds": line.us,
            }
            for line in section.lines
        ],
    }
