"""BuildContext: everything a layer needs to know to be built, as one explicit argument."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .parallel import (
    CommunicatorFactory,
    Group,
    Groups,
    ParameterFactory,
    PipelineStage,
    Topology,
    no_communicator,
    split_layers,
)
from .parallel.links import CostTable
from .planning.plan import Mode
from .quantization import (
    ExpertsMethod,
    QuantConfig,
    QuantMethod,
    QuantTarget,
    UnquantizedConfig,
)


@dataclass(frozen=True)
class BuildContext:
    """Where and how a model is built.

    Nothing here is global: several contexts, for several topologies, live in one process.

    Args:
        groups: this rank's groups; engines inject their own.
        topology: sizes of all axes and this rank's place.
        dtype: of floating-point parameters and activations.
        device: where parameters live; ``meta`` builds an empty shell.
        quant: gives each layer its quantization method.
        poison: fill new parameters with NaN, so that unwritten elements show (tests).
        layer_range: global ids of the layers held here; engines with a split of their own inject
            it, None asks the topology.
        plan: how collectives between stages are chosen: the ``cheapest`` for the size of a batch,
            or ``naive``, all-reduces in the same places for every batch.
        costs: of this machine's links and memory; the same on every rank. None for the defaults of
            the device.
        dp_lm_head: the vocabulary is split over each attention group, which then needs no rows of
            the others, instead of over all ranks of the stage.
    """

    groups: Groups
    topology: Topology = field(default_factory=Topology)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    quant: QuantConfig = field(default_factory=UnquantizedConfig)
    poison: bool = False
    layer_range: range | None = None
    plan: Mode = "cheapest"
    costs: CostTable | None = None
    dp_lm_head: bool = False

    @staticmethod
    def of(
        topology: Topology | None = None,
        *,
        communicators: CommunicatorFactory = no_communicator,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quant: QuantConfig | None = None,
        poison: bool = False,
        layer_range: range | None = None,
        plan: Mode = "cheapest",
        costs: CostTable | None = None,
        dp_lm_head: bool = False,
    ) -> BuildContext:
        """The context of ``topology.rank``; without communicators it can build but not sum."""
        topology = topology or Topology()
        return BuildContext(
            Groups.of(topology, communicators),
            topology,
            dtype,
            torch.device(device),
            quant or UnquantizedConfig(),
            poison,
            layer_range,
            plan,
            costs,
            dp_lm_head,
        )

    @property
    def head_group(self) -> str:
        """Name of the group that splits the vocabulary of the head."""
        return "attn_tp" if self.dp_lm_head else "tp"

    @property
    def make(self) -> ParameterFactory:
        """Makes empty parameters in this context's dtype on its device."""
        return ParameterFactory(self.dtype, self.device, self.poison)

    def group(self, name: str) -> Group:
        """The named group of this rank."""
        return self.groups[name]

    def pipeline_stage(self, num_layers: int) -> PipelineStage:
        """The layers of a model that belong here.

        Raises:
            ShapeError: they cannot be split over the topology's stages.
            TopologyError: an injected range that the model does not have.
        """
        if self.layer_range is not None:
            return PipelineStage(self.layer_range, num_layers)
        return PipelineStage.of(num_layers, self.topology)

    def pipeline_parts(self, num_layers: int) -> tuple[range, ...]:
        """Layers of every pipeline stage; with an injected range, of what is around it too."""
        if self.layer_range is None:
            return split_layers(num_layers, self.topology)
        here = self.pipeline_stage(num_layers).layers
        around = (range(here.start), here, range(here.stop, num_layers))
        return tuple(part for part in around if part)

    def method_for(self, prefix: str, kind: str = "linear") -> QuantMethod:
        """The quantization method of the layer at ``prefix``."""
        assert kind in ("linear", "embedding", "head")
        return self.quant.method_for(QuantTarget(prefix, kind))  # type: ignore[arg-type]  # checked

    def experts_method_for(self, prefix: str, experts: int) -> ExpertsMethod:
        """The quantization method of the linear layer at ``prefix`` of so many experts."""
        return self.quant.experts_method_for(QuantTarget(prefix, "experts", experts))
