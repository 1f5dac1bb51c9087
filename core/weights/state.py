"""WeightState: which weights a model holds, and whether they can be served."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ..errors import SpoiltWeightsError, UnloadedWeightsError
from .filling import Filling, StoredNames


@dataclass(frozen=True)
class WeightState:
    """Immutable, so that an undone update puts the old one back.

    Args:
        version: how often weights were written.
        fault: what ended a write half-way; empty when the weights are whole.
        names: what the checkpoint of the last full load in Hugging Face format called each part.
        loaded: somebody filled them, in whole; not whether that is known to have ended well.
    """

    version: int = 0
    fault: str = ""
    names: StoredNames = field(default_factory=dict)
    loaded: bool = False

    def require(self) -> None:
        """Nothing, when the weights are whole.

        Raises:
            SpoiltWeightsError: a write ended half-way.
            UnloadedWeightsError: nobody ever filled them.
        """
        if self.fault:
            raise SpoiltWeightsError(self.fault)
        if not self.loaded:
            raise UnloadedWeightsError

    def after(self, filling: Filling, fmt: str) -> WeightState:
        """The state when a filling is written; foreign names are not kept."""
        if not filling.whole:
            return replace(self, version=self.version + 1)
        names: StoredNames = filling.stored_names if fmt == "hf" else {}
        return self.filled(names)

    def filled(self, names: StoredNames | None = None) -> WeightState:
        """The state when every parameter was filled, maybe from tensors of these names."""
        return WeightState(self.version + 1, "", names or {}, loaded=True)

    def emptied(self) -> WeightState:
        """The state when the parameters lost their values."""
        return WeightState(self.version + 1)

    def spoilt(self, error: BaseException) -> WeightState:
        """The state when writing ended with an error."""
        lines = str(error).splitlines() or ["no message"]
        fault = f"{type(error).__name__}: {lines[0]}"
        return replace(self, version=self.version + 1, fault=fault)

    def forget(self, parameters: Collection[str]) -> WeightState:
        """Without the names of these parameters."""
        names: StoredNames = {
            part: name for part, name in self.names.items() if part[0] not in parameters
        }
        return replace(self, version=self.version + 1, names=names)
