"""Lending: a draft whose checkpoint stores no embedding takes its target's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...config import ModelConfig
from ...errors import InputError, ShapeError
from ...models import DecoderBase, DraftModel, name_map
from ...models.causal_lm import EMBEDDING_WEIGHT
from ...parallel import Box, box_slices
from ...weights import WeightSource
from ...weights.source import TensorInfo
from ..engine import Engine
from ..exporting import export_weights


class LentSource:
    """A checkpoint beside one tensor of another model.

    Args:
        source: the checkpoint.
        name: what it would have called the tensor.
        tensor: the other model's.
    """

    def __init__(self, source: WeightSource, name: str, tensor: Tensor) -> None:
        """The checkpoint has no tensor of that name."""
        self._source, self._name, self._tensor = source, name, tensor

    @property
    def description(self) -> str:
        """The checkpoint's."""
        return self._source.description

    @property
    def format(self) -> str:
        """The checkpoint's."""
        return self._source.format

    @property
    def notes(self) -> tuple[str, ...]:
        """The checkpoint's, and what is not its own."""
        return (*self._source.notes, f"{self._name} is a copy of the target's embedding")

    def infos(self) -> Mapping[str, TensorInfo]:
        """All of the checkpoint's, then the tensor."""
        shape, dtype = tuple(self._tensor.shape), self._tensor.dtype
        lent = TensorInfo(self._name, shape, dtype, "the target")
        return {**self._source.infos(), self._name: lent}

    def read(self, name: str, box: Box) -> Tensor:
        """A slice of either."""
        if name == self._name:
            return self._tensor[box_slices(box)]
        return self._source.read(name, box)

    def close(self) -> None:
        """Close the checkpoint."""
        self._source.close()


def with_embedding(
    source: WeightSource,
    model_class: type[DecoderBase],
    config: ModelConfig,
    target: Engine | None,
) -> WeightSource:
    """The source; of a draft without an embedding, with its target's (collective).

    Args:
        source: of the checkpoint to load.
        model_class, config: of it.
        target: of the model it will draft for; None where nobody says.

    Raises:
        InputError: a draft needs one and there is no target.
        ShapeError: the target's embedding is of another size.
    """
    if not issubclass(model_class, DraftModel):
        return source
    names = name_map(model_class, source.format).bound(source.infos())
    name = names.to_checkpoint(EMBEDDING_WEIGHT)
    if name in source.infos():
        return source
    if target is None:
        raise InputError(
            f"{source.description} stores no {name}: this draft takes its target's embedding; "
            "load it with target=model"
        )
    big = target.config
    wanted, found = (config.vocab_size, config.hidden_size), (big.vocab_size, big.hidden_size)
    if wanted != found:
        raise ShapeError(
            f"{source.description} stores no {name}; the target's embedding is {found[0]} x "
            f"{found[1]}, this draft needs {wanted[0]} x {wanted[1]}: it was made for another model"
        )
    ((_, embedding),) = export_weights(target, EMBEDDING_WEIGHT)
    return LentSource(source, name, embedding)
