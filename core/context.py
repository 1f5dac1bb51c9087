"""BuildContext: everything a layer needs to know to be built, as one explicit argument."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .parallel import (
    CommunicatorFactory,
    Group,
    Groups,
    ParameterFactory,
    Topology,
    no_communicator,
)
from .quantization import QuantConfig, QuantMethod, QuantTarget, UnquantizedConfig


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
    """

    groups: Groups
    topology: Topology = field(default_factory=Topology)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    quant: QuantConfig = field(default_factory=UnquantizedConfig)
    poison: bool = False

    @staticmethod
    def of(
        topology: Topology | None = None,
        *,
        communicators: CommunicatorFactory = no_communicator,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quant: QuantConfig | None = None,
        poison: bool = False,
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
        )

    @property
    def make(self) -> ParameterFactory:
        """Makes empty parameters in this context's dtype on its device."""
        return ParameterFactory(self.dtype, self.device, self.poison)

    def group(self, name: str) -> Group:
        """The named group of this rank."""
        return self.groups[name]

    def method_for(self, prefix: str, kind: str = "linear") -> QuantMethod:
        """The quantization method of the layer at ``prefix``."""
        assert kind in ("linear", "embedding", "head")
        return self.quant.method_for(QuantTarget(prefix, kind))  # type: ignore[arg-type]  # checked
