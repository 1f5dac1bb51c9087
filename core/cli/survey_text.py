"""The screens of ``preflight``: verdict, faults, memory and heads; and one name followed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..parallel import Box, ExpertShard, Piece, ShardId
from ..survey import Explanation, HeadShare, PreflightReport, RankReport, holders
from ..survey.explanation import Use
from ..weights import Stored, TensorInfo
from ..weights.report import fault_lines, refusal
from . import layout
from .topologies import topology_text

_LEGEND = (
    "WEIGHTS: parameters with padding, and rotary tables. KV/TOKEN: one token in all layers of the "
    "rank, copies of KV heads included. ACTIVATIONS: an estimate from above."
)
_CONTEXT = " CONTEXT: tokens of each request that fit beside the rest."


def as_text(report: PreflightReport, columns: int) -> str:
    """The whole report.

    Args:
        report: what was found.
        columns: width of the page.
    """
    blocks = [list(layout.fields(_heading(report), columns))]
    if report.found:
        blocks.append(_faults(report, columns))
    blocks.append(list(layout.fields(_memory(report), columns)))
    blocks.append(_ranks(report, columns))
    heads = _heads(report, columns)
    if heads:
        blocks.append(heads)
    legend = _LEGEND if report.memory is None else _LEGEND + _CONTEXT
    blocks.append(layout.wrapped(legend, columns))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _heading(report: PreflightReport) -> Iterator[tuple[str, str]]:
    config = report.config
    yield "checkpoint", report.source
    dtype = str(report.dtype).removeprefix("torch.")
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {dtype}"
    yield "model", f"{report.architecture}, {size}"
    yield "topology", topology_text(report.topology)
    yield "verdict", _verdict(report)
    yield "tied", _named(f"{name} = {other}" for name, other in report.tied.items())
    yield "optional", _named(f"{name}, not in the checkpoint" for name in report.derived)
    yield "converted", _named(f"{count} x {change}" for change, count in report.converted.items())
    yield "skipped", _named(f"{len(names)} by {rule}" for rule, names in report.skipped.items())
    yield "defaulted", _named(config.ledger.defaulted, 8)
    yield "ignored", _named(config.ledger.ignored, 8)
    yield "unknown", _named(config.ledger.unknown, 8)
    yield "notes", "\n".join(report.notes)


def _verdict(report: PreflightReport) -> str:
    if report.found:
        return refusal("refused: the checkpoint", report.faults())
    nbytes = sum(place.stop - place.start for place in report.places.values())
    fills = sum(len(rank.fills) for rank in report.ranks)
    ranks = len(report.ranks)
    return (
        f"good: {len(report.tensors):,} tensors ({layout.size(nbytes)}) fill {fills:,} parameters "
        f"on {ranks} rank{'' if ranks == 1 else 's'}, each element once; none is left behind"
    )


def _faults(report: PreflightReport, columns: int) -> list[str]:
    """Each fault with its remedy, and the ranks that have it."""
    where = {fault.text: fault.ranks for fault in report.found}
    lines: list[str] = []
    for line in fault_lines(report.faults()):
        ranks = where.get(line.strip(), ())
        at = f" (rank{'s' if ranks[1:] else ''} {layout.spans(ranks)})" if ranks else ""
        lines += layout.wrapped(line + at, columns, hanging=2)
    return lines


def _memory(report: PreflightReport) -> Iterator[tuple[str, str]]:
    load = report.load
    requests = f"{load.batch} request{'' if load.batch == 1 else 's'}"
    fullest = max(report.ranks, key=lambda rank: rank.memory.need(1))
    yield (
        "needed",
        f"{layout.size(report.needed)} on the fullest rank, with {requests} of "
        f"{report.wanted_context:,} tokens and forwards of {load.chunk:,} rows",
    )
    if report.memory is None:
        return
    most, given = report.most_context(report.memory), layout.size(report.memory)
    if most:
        text = f"{given} hold {most:,} tokens for each of {requests}"
        text += f"; the model is made for {report.model_context:,}"
    else:
        fixed = layout.size(fullest.memory.fixed)
        text = f"{given} do not hold {fixed} of weights and activations, and a token"
    yield "fits" if report.fits else "no room", text


def _ranks(report: PreflightReport, columns: int) -> list[str]:
    """Memory of each rank; neighbours that are alike come together."""
    headings = ["RANKS", "LAYERS", "WEIGHTS", "KV/TOKEN", "ACTIVATIONS"]
    if report.memory is not None:
        headings.append("CONTEXT")
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in report.ranks:
        alike.setdefault(_rank_cells(report, rank), []).append(rank.rank)
    rows = [(layout.spans(ranks), *cells) for cells, ranks in alike.items()]
    return layout.aligned(headings, rows, columns, right=range(2, len(headings)))


def _rank_cells(report: PreflightReport, rank: RankReport) -> tuple[str, ...]:
    held = rank.memory
    cells = [
        layout.spans(rank.layers),
        layout.size(held.weights + held.tables),
        layout.size(held.kv_per_token),
        layout.size(held.activations),
    ]
    if report.memory is not None:
        tokens = max(0, held.tokens(report.memory))
        cells.append(f"{tokens // report.load.requests:,}")
    return tuple(cells)


def _heads(report: PreflightReport, columns: int) -> list[str]:
    """Heads of each place in a stage; stages that are alike come together."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for stage in range(report.topology.pp):
        first = stage * report.topology.tp
        ranks = report.ranks[first : first + report.topology.tp]
        for rank in ranks:
            for share in rank.heads:
                rows.setdefault(_head_cells(rank, share, ranks), []).append(rank.rank)
    headings = ("RANKS", "QUERY HEADS", "KV HEADS", "COPIES OF THEM")
    cells = [(layout.spans(ranks), *key) for key, ranks in rows.items()]
    return layout.aligned(headings, cells, columns) if cells else []


def _head_cells(rank: RankReport, share: HeadShare, stage: Sequence[RankReport]) -> tuple[str, ...]:
    """Which heads, and at which other places of the stage they are too."""
    first = stage[0].rank
    pairs = [
        (r.rank - first, each) for r in stage for each in r.heads if each.layers == share.layers
    ]
    others = {at for head in share.kv_heads for at in holders(pairs)[head]} - {rank.rank - first}
    copies = f"tp rank {layout.spans(sorted(others))}" if others else "none"
    return layout.spans(share.heads), layout.spans(share.kv_heads), copies


def explanation_text(found: Explanation, columns: int) -> str:
    """One name followed: bytes, parameter, rows and ranks."""
    blocks = [list(layout.fields(_found(found), columns))]
    blocks += [_use(found, use, columns) for use in found.uses]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _found(found: Explanation) -> Iterator[tuple[str, str]]:
    yield found.kind, found.name
    if found.tensor is not None:
        yield from _origin(found.tensor, found.stored)
    yield "fate", found.fate
    for fault in found.faults:
        yield "fault", fault.text
    for each in found.shapes:
        padding = "".join(f", {_box(box)} is padding" for box in each.padding)
        yield "shape", f"{list(each.shape)} on ranks {layout.spans(each.ranks)}{padding}"


def _origin(tensor: TensorInfo, stored: Stored | None) -> Iterator[tuple[str, str]]:
    yield "file", tensor.file
    if stored is not None:
        nbytes = layout.size(stored.stop - stored.start)
        yield "bytes", f"{stored.start:,} to {stored.stop:,} ({nbytes})"
        yield "stored as", f"{stored.kind} {list(tensor.shape)}"


def _use(found: Explanation, use: Use, columns: int) -> list[str]:
    part = _part(use.shard_id)
    if found.kind == "tensor":
        pairs = [("parameter", f"{use.parameter}{part}")]
    else:
        pairs = [("tensor", f"{use.tensor.name}{part}"), *_origin(use.tensor, use.stored)]
    headings = ("RANKS", "OF THE TENSOR", "IN THE PARAMETER", "BYTES")
    rows = [
        (layout.spans(each.ranks) if not at else "", *_piece_cells(use, piece))
        for each in use.slices
        for at, piece in enumerate(each.pieces)
    ]
    rows += [
        (layout.spans(each.ranks), "nothing", "", "0 B") for each in use.slices if not each.pieces
    ]
    return [*layout.fields(pairs, columns), *layout.aligned(headings, rows, columns, right=(3,))]


def _piece_cells(use: Use, piece: Piece) -> tuple[str, str, str]:
    return _box(piece.source), _box(piece.target), layout.size(use.tensor.nbytes(piece.source))


def _part(shard_id: ShardId) -> str:
    """Which part of a parameter, after its name; nothing for all of it."""
    if isinstance(shard_id, ExpertShard):
        return f", expert {shard_id.expert}{_part(shard_id.part)}"
    return "" if shard_id is None else f", part {shard_id!r}"


def _box(box: Box) -> str:
    """``0:128, 0:64``, as an index is written."""
    return ", ".join(f"{start}:{stop}" for start, stop in box) or "the number"


def _named(texts: Iterable[str], shown: int = 4) -> str:
    """The first few, and how many more."""
    every = list(texts)
    more = f" and {len(every) - shown} more" if every[shown:] else ""
    return ", ".join(every[:shown]) + more
