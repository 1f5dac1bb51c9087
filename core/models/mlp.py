"""Gated MLP shared by Llama-like models."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from ..config import ModelConfig
from ..layers import BuildContext, MergedColumnParallelLinear, RowParallelLinear, get_act_and_mul


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)); the output is partial over ``tp``.

    Args:
        config: sizes, biases and activation.
        ctx, prefix: as everywhere.

    Shapes:
        x: (T, D); returns (T, D), partial.

    Raises:
        ConfigError: the activation is none that is known.
    """

    parallel_group: ClassVar[str] = "tp"
    reduce_results: ClassVar[bool] = False
    """Whether it completes its own sum; only where no stage boundary does."""

    def __init__(self, config: ModelConfig, *, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.act_fn = get_act_and_mul(config.hidden_act, config.file)
        width = config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [width, width],
            bias=config.mlp_bias,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.gate_up_proj",
            output_name="intermediate_size",
        )
        self.down_proj = RowParallelLinear(
            width,
            config.hidden_size,
            bias=config.mlp_bias,
            reduce_results=self.reduce_results,
            parallel_group=self.parallel_group,
            ctx=ctx,
            prefix=f"{prefix}.down_proj",
            input_name="intermediate_size",
        )

    def forward(self, x: Tensor) -> Tensor:
        """(T, D) to this rank's part of the sum."""
        gate_up, _ = self.gate_up_proj(x)
        out: Tensor
        out, _ = self.down_proj(self.act_fn(gate_up))
        return out
