"""HandOff: what one pipeline stage gives the next, and how the next one takes it.

The residual stream crosses with every debt paid, as a flat dict of tensors. How its rows lie, all
of them on every rank or a slice on each, is in the plan that both ends made from the same facts.
Captured hidden states ride along to the last stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InputError
from ..parallel import PipelineStage

RESIDUAL = "residual"
"""Key of the residual rows."""

_AUX = "aux."


class PPProxyTensors(dict[str, Tensor]):
    """State that a pipeline stage hands to the next one: tensors by name, nothing owed."""


class HandOff:
    """The two ends of a stage. Both list tensors in one order, for they are sent one by one.

    Args:
        stage: which layers are here.
        hidden_size: D.
        dtype: of the residual stream.
    """

    def __init__(self, stage: PipelineStage, hidden_size: int, dtype: torch.dtype) -> None:
        self.stage, self.hidden_size, self.dtype = stage, hidden_size, dtype

    def give(self, residual: Tensor, aux: Mapping[int, Tensor]) -> PPProxyTensors:
        """What the next stage needs.

        Args:
            residual: this rank's rows of the settled stream.
            aux: captured so far, by index.
        """
        states = {f"{_AUX}{index}": aux[index] for index in sorted(aux)}
        return PPProxyTensors({RESIDUAL: residual, **states})

    def take(
        self, proxies: Mapping[str, Tensor] | None, like: PPProxyTensors
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The residual rows and the captured states as the stage before left them.

        Args:
            proxies: what that stage returned.
            like: on ``meta``, what it must have returned.

        Raises:
            InputError: no proxies, others than expected, or of another shape or dtype.
        """
        if proxies is None:
            raise InputError(
                f"pp_proxy_tensors is None, but this stage holds {self.stage}; pass what the stage "
                "before it returned"
            )
        if set(proxies) != set(like):
            raise InputError(
                f"pp_proxy_tensors holds {sorted(proxies)}, expected {sorted(like)}; pass what the "
                "stage before returned"
            )
        for name, expected in like.items():
            found = proxies[name]
            if found.shape != expected.shape or found.dtype is not expected.dtype:
                raise InputError(
                    f"pp_proxy_tensors[{name!r}] is {found.dtype} {list(found.shape)}, expected "
                    f"{expected.dtype} {list(expected.shape)}; pass what the stage before returned "
                    "for the same rows"
                )
        aux = {int(name.removeprefix(_AUX)): proxies[name] for name in like if name != RESIDUAL}
        return proxies[RESIDUAL], aux

    def like(
        self,
        residual_rows: int,
        aux_rows: int,
        captured: tuple[int, ...],
        device: torch.device | str = "meta",
    ) -> PPProxyTensors:
        """Tensors of the shapes and dtypes that ``take`` expects, values undefined.

        Args:
            residual_rows: rows of the stream on this rank.
            aux_rows: rows of this attention group.
            captured: indices that earlier stages capture.
            device: where to make them.
        """
        states = {f"{_AUX}{index}": aux_rows for index in sorted(captured)}
        sizes = {RESIDUAL: residual_rows, **states}
        return PPProxyTensors(
            {
                name: torch.empty(rows, self.hidden_size, dtype=self.dtype, device=device)
                for name, rows in sizes.items()
            }
        )
