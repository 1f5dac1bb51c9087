"""An MLP of experts, shared by models that have them."""

from __future__ import annotations

from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import ConfigError
from ..layers import BuildContext, get_act_and_mul
from ..layers.moe import Experts, TopKRouter


class SparseMLP(nn.Module):
    """Each row by the experts that its router chooses; the output is partial over ``moe``.

    Args:
        config: experts and sizes.
        ctx, prefix: as everywhere.

    Shapes:
        x: (T, D), the rows that ``declare_moe`` asks for; returns (T, D), partial.

    Raises:
        ConfigError: the model has no experts, or the activation is none that is known.
        ShapeError: the experts do not fit the topology.
    """

    def __init__(self, config: ModelConfig, *, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        moe = config.moe
        if moe is None:
            raise ConfigError(
                f"{prefix} has experts, the config has none", "num_experts", config.file
            )
        self.gate = TopKRouter(
            config.hidden_size,
            moe.num_experts,
            moe.num_experts_per_tok,
            moe.norm_topk_prob,
            ctx=ctx,
            prefix=f"{prefix}.gate",
        )
        self.experts = Experts(
            moe.num_experts,
            config.hidden_size,
            moe.intermediate_size,
            act_fn=get_act_and_mul(config.hidden_act, config.file),
            ctx=ctx,
            prefix=f"{prefix}.experts",
        )

    def forward(self, x: Tensor) -> Tensor:
        """(T, D) to this rank's part of the sum."""
        out: Tensor = self.experts(x, self.gate.route(x))
        return out
