"""A preflight report as plain objects for ``--json``."""

from __future__ import annotations

from collections.abc import Sequence

from ..parallel import Box, ExpertShard, ShardId
from ..survey import Explanation, PreflightReport, RankReport
from ..weights import Fault, Stored, TensorInfo
from .records import Record
from .topologies import topology_record


def as_record(report: PreflightReport) -> Record:
    """Everything but the slices, for programs."""
    config = report.config
    return {
        "path": report.path,
        "source": report.source,
        "architecture": report.architecture,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "dtype": str(report.dtype).removeprefix("torch."),
        "topology": topology_record(report.topology),
        "ok": report.ok,
        "tensors": len(report.tensors),
        "bytes": sum(place.stop - place.start for place in report.places.values()),
        "faults": [_fault_record(fault) for fault in report.found],
        "skipped": skips_record(report),
        "converted": dict(report.converted),
        "tied": dict(report.tied),
        "derived": list(report.derived),
        "notes": list(report.notes),
        "config": {
            "defaulted": config.ledger.defaulted,
            "ignored": config.ledger.ignored,
            "unknown": list(config.ledger.unknown),
        },
        "memory": _memory_record(report),
        "ranks": [_rank_record(report, rank) for rank in report.ranks],
    }


def skips_record(report: PreflightReport) -> Record:
    """Rule -> why, count and names."""
    return {
        rule: {"why": report.skip_reasons[rule], "count": len(names), "names": list(names)}
        for rule, names in report.skipped.items()
    }


def explanation_record(found: Explanation) -> Record:
    """One name, followed."""
    return {
        "name": found.name,
        "kind": found.kind,
        "fate": found.fate,
        "tensor": None if found.tensor is None else _tensor_record(found.tensor, found.stored),
        "faults": [_fault_record(fault) for fault in found.faults],
        "shapes": [
            {
                "ranks": list(each.ranks),
                "shape": list(each.shape),
                "padding": [_box(box) for box in each.padding],
            }
            for each in found.shapes
        ],
        "uses": [
            {
                "tensor": _tensor_record(use.tensor, use.stored),
                "parameter": use.parameter,
                **_part_record(use.shard_id),
                "slices": [
                    {
                        "ranks": list(each.ranks),
                        "pieces": [
                            {"source": _box(piece.source), "target": _box(piece.target)}
                            for piece in each.pieces
                        ],
                    }
                    for each in use.slices
                ],
            }
            for use in found.uses
        ],
    }


def _part_record(shard_id: ShardId) -> Record:
    if isinstance(shard_id, ExpertShard):
        return {"expert": shard_id.expert, "part": shard_id.part}
    return {"expert": None, "part": shard_id}


def _tensor_record(tensor: TensorInfo, stored: Stored | None) -> Record:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "file": tensor.file,
        "stored": None if stored is None else stored.kind,
        "bytes": None if stored is None else [stored.start, stored.stop],
    }


def _fault_record(fault: Fault) -> Record:
    return {
        "kind": getattr(fault, "kind", ""),
        "status": fault.status,
        "name": fault.name,
        "text": fault.text,
        "ranks": list(getattr(fault, "ranks", ())),
    }


def _memory_record(report: PreflightReport) -> Record:
    given = report.memory
    return {
        "batch": report.load.batch,
        "chunk": report.load.chunk,
        "context": report.wanted_context,
        "model_context": report.model_context,
        "needed": report.needed,
        "memory": given,
        "fits": report.fits,
        "most_context": None if given is None else report.most_context(given),
    }


def _rank_record(report: PreflightReport, rank: RankReport) -> Record:
    held = rank.memory
    return {
        "rank": rank.rank,
        "layers": _ends(rank.layers),
        "parameters": len(rank.fills),
        "read_bytes": rank.read_bytes,
        "weights": held.weights,
        "tables": held.tables,
        "kv_per_token": held.kv_per_token,
        "activations": held.activations,
        "tokens": None if report.memory is None else held.tokens(report.memory),
        "heads": [
            {
                "layers": each.layers,
                "heads": _ends(each.heads),
                "kv_heads": _ends(each.kv_heads),
                "replicas": each.replicas,
            }
            for each in rank.heads
        ],
    }


def _ends(numbers: range) -> list[int]:
    """First number, and the one after the last."""
    return [numbers.start, numbers.stop]


def _box(box: Box) -> Sequence[Sequence[int]]:
    return [list(pair) for pair in box]
