"""QuantMethod: creates a layer's parameters and applies them. Linears allocate nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import QuantizationError
from ..parallel import OUT, ExpertPartition, LinearPartition, ParameterFactory


@dataclass(frozen=True)
class QuantTarget:
    """What asks for a method.

    Args:
        prefix: dotted module path, equal to the parameter-name prefix.
        kind: ``linear``, ``embedding`` (lookup), ``head`` (vocabulary projection) or ``experts`` (a
            linear layer of every expert).
        experts: how many of them there are on all ranks, where the kind is ``experts``.
    """

    prefix: str
    kind: Literal["linear", "embedding", "head", "experts"]
    experts: int = 0


class WeightMethod:
    """How the weights of one layer are stored, whatever is done with them; one object each.

    Parameters are created with ShardSpecs (``partition.spec(...)``), so the loader needs no
    knowledge of the method.
    """

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Derive what ``apply`` wants from what was loaded (packed layouts, joined scales).

        Called once after each load that touched the layer. Nothing to derive unless overridden.
        What was derived before is replaced, never changed in place: an update that is undone puts
        it back.
        """
        return

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        """Undo ``process_weights_after_loading``, so that parameters can be written again."""
        return

    def plain_values(self, layer: nn.Module, name: str) -> Tensor:
        """A parameter's values as they were loaded, whatever was derived from them.

        Args:
            layer: holds it.
            name: its attribute there.

        Raises:
            QuantizationError: the method dropped them, and does not override this.
        """
        parameter: Tensor = getattr(layer, name)
        if parameter.is_meta:
            raise QuantizationError(
                f"{type(self).__qualname__} keeps no plain values of {name!r}; override "
                "plain_values to give them back"
            )
        return parameter.detach()


class QuantMethod(WeightMethod, ABC):
    """The weights of a linear layer, an embedding or a head."""

    @abstractmethod
    def create_weights(
        self, layer: nn.Module, partition: LinearPartition, make: ParameterFactory
    ) -> None:
        """Register this layer's parameters, empty.

        Args:
            layer: where they go.
            partition: how features are divided.
            make: gives empty parameters for a ShardSpec.
        """

    def create_bias(
        self, layer: nn.Module, partition: LinearPartition, make: ParameterFactory
    ) -> None:
        """Register ``bias``, one number for each output feature."""
        layer.register_parameter("bias", make(partition.spec(OUT)))

    @abstractmethod
    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + bias.

        Args:
            layer: holds the parameters.
            x: (T, in_features) of this rank.
            bias: (out_features,) or None.

        Returns:
            (T, out_features), x's dtype.
        """


class ExpertsMethod(WeightMethod, ABC):
    """The weights of a linear layer of every expert here."""

    @abstractmethod
    def create_weights(
        self, layer: nn.Module, partition: ExpertPartition, make: ParameterFactory
    ) -> None:
        """Register the parameters that stack all experts here, empty.

        Args:
            layer: where they go.
            partition: which experts are here, how the features of each are divided.
            make: gives empty parameters for a ShardSpec.
        """

    @abstractmethod
    def apply(self, layer: nn.Module, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x W^T, each row by the matrix of its expert.

        Args:
            layer: holds the parameters.
            x: (R, in_features), rows of the first expert here, then of the second, …
            counts: rows of each expert here; they add up to R.

        Returns:
            (R, out_features), x's dtype.
        """


class QuantConfig(ABC):
    """A checkpoint's quantization: gives each layer its method.

    A plugin registers a subclass under the entry-point group ``archzoo.quantization``, by the
    name that ``quant_method`` has in config.json.
    """

    name: str

    @classmethod
    def from_checkpoint(cls, settings: Mapping[str, Any]) -> QuantConfig:
        """Read a checkpoint's ``quantization_config``.

        Args:
            settings: the block, without nulls, method under ``quant_method``.

        Raises:
            QuantizationError: the class reads none, or the block cannot be served.
        """
        raise QuantizationError(f"{cls.__qualname__} reads no quantization_config")

    @abstractmethod
    def method_for(self, target: QuantTarget) -> QuantMethod:
        """The method of one layer.

        Raises:
            QuantizationError: this configuration cannot serve that layer.
        """

    def experts_method_for(self, target: QuantTarget) -> ExpertsMethod:
        """The method of a linear layer of experts.

        Raises:
            QuantizationError: this configuration cannot serve experts, or not those.
        """
        raise QuantizationError(
            f"{target.prefix}: {type(self).__qualname__} ({self.name}) does not serve experts; use "
            "an unquantized checkpoint of this model"
        )


__all__ = ["ExpertsMethod", "QuantConfig", "QuantMethod", "QuantTarget", "WeightMethod"]
