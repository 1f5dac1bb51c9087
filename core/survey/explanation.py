"""Explanation: one tensor followed from its bytes to parameters, rows and ranks; and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..errors import InputError
from ..parallel import Box, Piece, ShardId
from ..weights import Claim, Fault, Fill, Stored, Target, TensorInfo
from ..weights.remap import describe

if TYPE_CHECKING:
    from .report import PreflightReport


@dataclass(frozen=True)
class Slice:
    """Slices that some ranks take, all of them the same.

    Args:
        ranks: that take them.
        pieces: boxes of the tensor and the boxes of the parameter that they fill; none on ranks
            whose part is empty.
    """

    ranks: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Use:
    """A tensor in a parameter.

    Args:
        tensor: what its header says.
        stored: where its bytes lie; None where the source does not say.
        parameter: that it fills.
        shard_id: which part of it; None for all of it.
        slices: which ranks take what.
    """

    tensor: TensorInfo
    stored: Stored | None
    parameter: str
    shard_id: ShardId
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Shape:
    """A parameter's shape and unfilled padding on some ranks."""

    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    padding: tuple[Box, ...]


@dataclass(frozen=True)
class Explanation:
    """What becomes of one name.

    Args:
        name: as asked.
        kind: of what it is the name.
        tensor: of that name; None for a parameter.
        stored: where the tensor's bytes lie.
        fate: in a sentence.
        uses: of the tensor, or in the parameter.
        shapes: of a parameter, by rank.
        faults: that name it.
    """

    name: str
    kind: str
    tensor: TensorInfo | None
    stored: Stored | None
    fate: str
    uses: tuple[Use, ...]
    shapes: tuple[Shape, ...]
    faults: tuple[Fault, ...]


def explain(report: PreflightReport, name: str) -> Explanation:
    """Follow a tensor or a parameter.

    Raises:
        InputError: neither has that name.
    """
    faults = tuple(fault for fault in report.found if fault.name == name)
    tensor = report.tensors.get(name)
    if tensor is not None:
        uses = tuple(_uses(report, _fills_with(report, name), name))
        fate = _fate(report, name, uses, faults)
        stored = report.places.get(name)
        return Explanation(name, "tensor", tensor, stored, fate, uses, (), faults)
    fills = [(rank.rank, rank.fills[name]) for rank in report.ranks if name in rank.fills]
    if not fills and not faults and name not in report.derived and name not in report.tied:
        raise InputError(_unknown(report, name))
    uses = tuple(_uses(report, fills))
    fate = _parameter_fate(report, name, uses, faults)
    return Explanation(name, "parameter", None, None, fate, uses, _shapes(fills), faults)


def _fills_with(report: PreflightReport, name: str) -> Iterator[tuple[int, Fill]]:
    """Every fill, on every rank, that a tensor is part of."""
    parameters = [
        parameter
        for parameter, group in report.routes.groups.items()
        if any(claim.tensor.name == name for claim in group.claims)
    ]
    for rank in report.ranks:
        for fill in rank.fills.values():
            if fill.group.parameter in parameters:
                yield rank.rank, fill


def _uses(
    report: PreflightReport, fills: Iterable[tuple[int, Fill]], only: str | None = None
) -> Iterator[Use]:
    """Tensors in fills, each with its slices; ranks that take the same come together."""
    found: dict[tuple[str, Claim], dict[tuple[Piece, ...], list[int]]] = {}
    for rank, fill in fills:
        for number, pieces in fill.layout.parts:
            claim = fill.group.claims[number]
            if only in (None, claim.tensor.name):
                taken = found.setdefault((fill.parameter, claim), {})
                taken.setdefault(pieces, []).append(rank)
    for (parameter, claim), taken in found.items():
        slices = tuple(Slice(tuple(ranks), pieces) for pieces, ranks in taken.items())
        tensor, stored = claim.tensor, report.places.get(claim.tensor.name)
        yield Use(tensor, stored, parameter, claim.shard_id, slices)


def _shapes(fills: list[tuple[int, Fill]]) -> tuple[Shape, ...]:
    found: dict[tuple[tuple[int, ...], tuple[Box, ...]], list[int]] = {}
    for rank, fill in fills:
        found.setdefault((fill.layout.shape, fill.layout.padding), []).append(rank)
    return tuple(Shape(tuple(ranks), *key) for key, ranks in found.items())


def _fate(
    report: PreflightReport, name: str, uses: tuple[Use, ...], faults: tuple[Fault, ...]
) -> str:
    if faults:
        return f"refused: {faults[0].status}"
    for rule, names in report.skipped.items():
        if name in names:
            return f"skipped by {rule}: {report.skip_reasons[rule]}"
    if uses:
        return "written"
    return "stored beside a tensor that is tied to it, or handed to a module that loads itself"


def _parameter_fate(
    report: PreflightReport, name: str, uses: tuple[Use, ...], faults: tuple[Fault, ...]
) -> str:
    if faults:
        return f"not filled: {faults[0].status}"
    if uses:
        return "filled"
    if name in report.tied:
        return f"tied to {report.tied[name]}"
    return "optional, and not in the checkpoint: it keeps its initial value"


def _unknown(report: PreflightReport, name: str) -> str:
    parameters = {each for rank in report.ranks for each in rank.fills}
    near = get_close_matches(name, [*report.tensors, *parameters], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    wanted = report.routes.names.to_parameter(name)
    if isinstance(wanted, Target) and wanted.parameter in parameters:
        where = describe(wanted.parameter, wanted.shard_id)
        hint = f"; a tensor of that name would fill {where}, which can be explained"
    return (
        f"{name!r} is neither a tensor of {report.source} nor a parameter of "
        f"{report.architecture}{hint}"
    )
