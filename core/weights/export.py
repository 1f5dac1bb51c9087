"""Exporter: one rank's slices of checkpoint tensors, out of its loaded parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import WeightError
from ..parallel import Box, Piece, Segment, ShardId, box_numel, box_shape, box_slices
from .filling import StoredNames
from .parameters import ParameterTable, self_loading
from .remap import NameMap


@dataclass(frozen=True)
class Offer:
    """What a rank holds of one checkpoint tensor.

    Args:
        name: of the tensor.
        shape: full shape.
        dtype: without ``torch.``.
        boxes: of the tensor, which this rank holds; none empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[Box, ...]


class Exporter:
    """Reads a loaded model back under checkpoint names.

    Args:
        model: loaded.
        names: Hugging Face names of its parameters.
        stored: names that its checkpoint used, which come first: they show what was fused there.
        copies: parameters that copy others, which another rank or parameter stands for.

    Raises:
        WeightError: a parameter that no checkpoint name leads to, or a module that loads itself.
    """

    def __init__(
        self, model: nn.Module, names: NameMap, stored: StoredNames, copies: Mapping[str, str]
    ) -> None:
        """Find out what there is."""
        self._table, self._names, self._stored = ParameterTable(model), names, stored
        self._parts: dict[str, tuple[str, Segment]] = {}
        self._last: tuple[str, Tensor] | None = None
        for prefix in self_loading(model):
            raise WeightError(
                f"{prefix} loads itself, and nothing tells which checkpoint names its parameters "
                "have; export from a model whose loader archzoo is"
            )
        for parameter in self._table:
            if parameter not in copies:
                for shard_id in self._shards(parameter):
                    self._enter(parameter, shard_id)

    def offers(self, only: str | None = None) -> Iterator[Offer]:
        """Every tensor this rank holds some of, in parameter order.

        Args:
            only: those that fill this parameter; None for all.
        """
        for name, (parameter, segment) in self._parts.items():
            if only not in (None, parameter):
                continue
            dtype = str(self._table.parameters[parameter].dtype).removeprefix("torch.")
            boxes = tuple(piece.source for piece in _pieces(segment))
            yield Offer(name, segment.source_shape, dtype, boxes)

    def read(self, name: str, box: Box) -> Tensor:
        """The values of one of the offered boxes; a view, not to be changed."""
        parameter, segment = self._parts[name]
        piece = next(piece for piece in _pieces(segment) if piece.source == box)
        return self._plain(parameter)[box_slices(piece.target)].view(box_shape(box))

    def _shards(self, parameter: str) -> tuple[ShardId, ...]:
        """Parts under which a parameter is exported; none for an optional one nobody stored."""
        if (parameter, None) in self._stored:
            return (None,)
        spec = self._table.spec(parameter)
        if spec.optional and not any((parameter, each) in self._stored for each in spec.shard_ids):
            return ()
        return spec.shard_ids

    def _enter(self, parameter: str, shard_id: ShardId) -> None:
        name = self._stored.get((parameter, shard_id))
        name = name or self._names.to_checkpoint(parameter, shard_id)
        if name in self._parts:
            raise WeightError(
                f"{parameter} and {self._parts[name][0]} would both be exported as {name}; correct "
                "the name rules"
            )
        if self._table.relaid(parameter):
            raise WeightError(
                f"{parameter} holds a derived layout, which cannot be exported as {name}; its "
                "quantization method must keep its shape"
            )
        self._parts[name] = (parameter, self._table.spec(parameter).segment(shard_id))

    def _plain(self, parameter: str) -> Tensor:
        """A parameter's plain values; those of the last one asked for are kept."""
        if self._last is None or self._last[0] != parameter:
            self._last = None
            module, attribute = self._table.holder(parameter)
            method = getattr(module, "quant_method", None)
            values = getattr(module, attribute).detach()
            if method is not None:
                values = method.plain_values(module, attribute)
            self._last = (parameter, values)
        return self._last[1]


def _pieces(segment: Segment) -> list[Piece]:
    return [piece for piece in segment.pieces if box_numel(piece.source)]
