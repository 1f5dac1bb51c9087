"""Pipeline stages: which stage holds which layers, and what stands where a stage holds nothing.

One function decides, and everything that must know asks it: modules, weights, KV pool, preflight.
Layer numbers are global everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

from torch import nn

from ..errors import ShapeError, TopologyError
from .topology import Topology


def split_layers(num_layers: int, topology: Topology) -> tuple[range, ...]:
    """Global layer ids of every pipeline stage, first stage first.

    ``topology.pp_layers`` where it was given. Otherwise every stage gets ``num_layers // pp``, and
    what is left over goes one layer each to the second stage, the third, … and to the first stage
    after all others; the last stage, which also multiplies with the head, never gets one more.

    Args:
        num_layers: of the whole model.
        topology: number of stages, and the sizes that were asked for.

    Raises:
        ShapeError: more stages than layers, or sizes that add up to another number.
    """
    sizes = topology.pp_layers
    if sizes is None:
        sizes = _even(num_layers, topology.pp)
    elif sum(sizes) != num_layers:
        raise ShapeError(
            f"pp_layers={sizes} add up to {sum(sizes)}, the model has {num_layers} layers "
            "(num_hidden_layers); give every layer to one stage"
        )
    stops = list(accumulate(sizes))
    return tuple(range(stop - size, stop) for size, stop in zip(sizes, stops, strict=True))


def _even(num_layers: int, stages: int) -> tuple[int, ...]:
    if stages > num_layers:
        raise ShapeError(
            f"pp={stages}: more pipeline stages than the model's {num_layers} layers "
            f"(num_hidden_layers); use pp of at most {num_layers}"
        )
    size, left = divmod(num_layers, stages)
    inner_first = [*range(1, stages - 1), 0]
    longer = set(inner_first[:left])
    return tuple(size + (stage in longer) for stage in range(stages))


@dataclass(frozen=True)
class PipelineStage:
    """The layers of one pipeline stage, and whether it holds the model's ends.

    Args:
        layers: global layer ids, in a row.
        num_layers: of the whole model.

    Raises:
        TopologyError: no layer, or ids that the model does not have.
    """

    layers: range
    num_layers: int

    def __post_init__(self) -> None:
        """Refuse ranges that are not a part of the model."""
        start, stop = self.layers.start, self.layers.stop
        if self.layers.step != 1 or not 0 <= start < stop <= self.num_layers:
            raise TopologyError(
                f"layers {self.layers} cannot be a pipeline stage of a model with "
                f"{self.num_layers} layers; give a range with 0 <= start < stop <= "
                f"{self.num_layers} and step 1"
            )

    @staticmethod
    def of(num_layers: int, topology: Topology) -> PipelineStage:
        """The stage of ``topology.rank``."""
        return PipelineStage(split_layers(num_layers, topology)[topology.pp_rank], num_layers)

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the final norm and the head are here."""
        return self.layers.stop == self.num_layers

    def __str__(self) -> str:
        """``layers 2 to 3 of 6``."""
        return f"layers {self.layers.start} to {self.layers.stop - 1} of {self.num_layers}"


class Elsewhere(nn.Module):
    """Stands where another pipeline stage has a module; holds nothing, and cannot be called.

    The loader leaves the tensors of everything under ``prefix`` to that stage.

    Args:
        prefix: dotted path of the module it stands for.
        stage: the stage that does not have it.
    """

    def __init__(self, prefix: str, stage: PipelineStage) -> None:
        super().__init__()
        self.prefix, self.stage = prefix, stage

    def forward(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse.

        Raises:
            TopologyError: always.
        """
        raise TopologyError(
            f"{self.prefix} is on another pipeline stage, this one holds {self.stage}; run the "
            "whole stage and hand its proxy tensors on"
        )
