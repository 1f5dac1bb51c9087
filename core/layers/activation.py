"""Activations of gated MLPs, by the names that ``hidden_act`` of a config.json has for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError

Activation = Callable[[Tensor], Tensor]


class GatedActivation(nn.Module):
    """act(gate) * up, where the input holds gate and up side by side.

    Args:
        act: applied to each number of the gate.

    Shapes:
        x: (T, 2F); returns (T, F).

    Source:
        Shazeer, "GLU Variants Improve Transformer" (arXiv 2002.05202).
    """

    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """Gate the second half by the first."""
        gate, up = x.chunk(2, dim=-1)
        return self.act(gate) * up


class SiluAndMul(GatedActivation):
    """silu(gate) * up."""

    def __init__(self) -> None:
        super().__init__(F.silu)


def get_act_and_mul(name: str, file: str = "") -> GatedActivation:
    """The gated activation of a config's ``hidden_act``.

    Args:
        name: as ``transformers`` has it in its ``ACT2FN``, or the one name of ModelConfig.
        file: where it stands, for the message.

    Raises:
        ConfigError: none of that name.
    """
    found = ACTIVATIONS.get(name)
    if found is None:
        raise ConfigError(
            f"{name!r} is no activation that a gated MLP serves here; expected one of "
            f"{', '.join(sorted(ACTIVATIONS))}",
            "hidden_act",
            file,
        )
    return SiluAndMul() if found is F.silu else GatedActivation(found)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _clipped_gelu(x: Tensor) -> Tensor:
    return F.gelu(x).clamp(-10, 10)


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _identity(x: Tensor) -> Tensor:
    return x


def _laplace(x: Tensor, mean: float = 0.707107, spread: float = 0.282095) -> Tensor:
    return 0.5 * (1.0 + torch.erf((x - mean) / (spread * math.sqrt(2.0))))


_GELU_TANH = partial(F.gelu, approximate="tanh")

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
        _GELU_TANH,
    ),
    "gelu_10": _clipped_gelu,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _squared_relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": _identity,
    "laplace": _laplace,
}
"""Name -> function: ``ACT2FN`` of ``transformers`` without ``prelu`` and ``xielu``, which have
parameters of their own, and ``sqrtsoftplus``, a router's. Functions have names, so modules pickle."""
